"""A cluster of simulated nodes: real API server, etcd, scheduler, controllers, operators, and kubelets that do nothing.

A simulated kubelet calls a pod Running, and ready, as soon as it is on its node, and lets it go when it is deleted. So
what is left of a job's start is what Kubernetes and the job's operator do. All of it runs on this machine, on loopback.
"""

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import urllib3
import yaml

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "simulated"
KUBELETS = "simulated-kubelets"  # what they and this program call themselves to the API server
PROGRAMS = ("kubernetes", "kubectl", "training-operator", "mpi-operator", "trainer", "jobset", "helm3")
WORKERS = 8  # threads of the simulated kubelets
SECONDS = 120.0  # for a program to start, on a busy machine
CERTS = "/tmp/k8s-webhook-server"  # training-operator's, which has no option for it
AUDIT = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"],
         "rules": [{"level": "Metadata"}]}  # fmt: skip
WEBHOOK = "validator.training-operator.kubeflow.org"  # training-operator waits for it; this one is asked of nothing
OFF = {"name": WEBHOOK, "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
       "clientConfig": {"service": {"name": "none", "namespace": "kubeflow"}},
       "rules": [{"apiGroups": ["none"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["no"]}]}  # fmt: skip

Thing = dict[str, Any]


class SimulationError(Exception):
    """A part of the simulated cluster did not start, or refused something."""


def free_port() -> int:
    """Return a port of loopback that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Client:
    """Talks to the API server, from any thread."""

    def __init__(self, port: int) -> None:
        """Nothing is asked yet."""
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        headers = {"Authorization": f"Bearer {TOKEN}", "User-Agent": KUBELETS}
        self._pool = urllib3.PoolManager(cert_reqs="NONE", headers=headers, maxsize=2 * WORKERS)
        self._url, self._headers = f"https://127.0.0.1:{port}", headers

    def ask(self, verb: str, path: str, body: Thing | None = None, patch: str = "merge-patch") -> Thing:
        """Make a request; raises SimulationError with the server's words, LookupError where there is no such thing."""
        kind = f"application/{patch}+json" if verb == "PATCH" else "application/json"
        headers = self._headers | {"Content-Type": kind}
        done = self._pool.request(verb, self._url + path, body=body and json.dumps(body), headers=headers)
        if done.status == 404:
            raise LookupError(path)
        if done.status >= 400:
            raise SimulationError(f"{verb} {path}: {done.status} {done.data.decode()[:400]}")
        return dict(json.loads(done.data))

    def watch(self, path: str) -> Iterator[Thing]:
        """Yield events until the connection ends."""
        answer = self._pool.request("GET", f"{self._url}{path}?watch=true&timeoutSeconds=3600", preload_content=False)
        rest = b""
        for part in answer.stream(1 << 16):
            *lines, rest = (rest + part).split(b"\n")
            yield from (json.loads(line) for line in lines if line)


class Kubelets:
    """Those of all nodes: pods run as soon as they are placed, and are gone as soon as they are deleted."""

    def __init__(self, client: Client) -> None:
        """Begin to watch all pods."""
        self.running: dict[str, Counter[str]] = {}  # by namespace: pods by state
        self.refused: list[str] = []  # what the API server did not let them say
        self._client = client
        self._states: dict[str, str] = {}
        self._lock, self._pool = threading.Lock(), ThreadPoolExecutor(WORKERS)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while True:
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                for event in self._client.watch("/api/v1/pods"):
                    if event["type"] == "ERROR":  # its cache is not there yet
                        break
                    self._take(event["type"], event["object"])
            time.sleep(0.2)

    def _take(self, kind: str, pod: Thing) -> None:
        meta, key = pod["metadata"], pod["metadata"].get("uid", "")
        state = "gone" if kind == "DELETED" else pod.get("status", {}).get("phase", "Pending")
        with self._lock:
            counts = self.running.setdefault(meta.get("namespace", ""), Counter())
            counts[self._states.get(key, "")] -= 1
            counts[state] += 1
            self._states[key] = state
        if state == "gone" or "nodeName" not in pod.get("spec", {}):
            return
        if "deletionTimestamp" in meta:
            self._pool.submit(self._finish, f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}")
        elif state == "Pending":
            self._pool.submit(self._run, pod)

    def _finish(self, path: str) -> None:
        self._try("DELETE", path, {"gracePeriodSeconds": 0})

    def _try(self, verb: str, path: str, body: Thing, patch: str = "") -> None:
        try:
            self._client.ask(verb, path, body, patch)
        except LookupError:
            pass  # it is gone
        except (SimulationError, urllib3.exceptions.HTTPError) as error:
            self.refused.append(str(error))

    def _run(self, pod: Thing) -> None:
        now, number = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), hash(pod["metadata"]["uid"]) % (1 << 22)
        states = [
            {"name": one["name"], "image": one["image"], "imageID": "simulated", "ready": True, "started": True,
             "restartCount": 0, "state": {"running": {"startedAt": now}}}
            for one in pod["spec"]["containers"]
        ]  # fmt: skip
        kinds = ("Initialized", "ContainersReady", "Ready", "PodScheduled")
        status = {
            "phase": "Running", "startTime": now, "hostIP": "127.0.0.1", "containerStatuses": states,
            "podIP": f"10.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}",
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
        }  # fmt: skip
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
        self._try("PATCH", path, {"status": status}, patch="strategic-merge-patch")


class Cluster:
    """The programs, and the way to them; `with` ends all of them."""

    def __init__(self, nodes: int, operators: Sequence[str], qps: int = 0) -> None:
        """Start all; `qps`: requests a second of each operator, its own default where 0. Raises SimulationError."""
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self._qps, self._port = qps, free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="simulated-", dir="/dev/shm"))
        self.client = Client(self._port)
        try:
            self._start_control_plane()
            self._make(nodes)
            self.kubelets = Kubelets(self.client)
            for name in operators:
                self._start(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Cluster":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all programs."""
        self.close()

    def close(self) -> None:
        """End all programs and remove their files."""
        for program in self.programs.values():
            program.kill()
            program.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def audit(self) -> Counter[tuple[str, str, str]]:
        """Return the requests so far, by who made them, verb and kind."""
        found: Counter[tuple[str, str, str]] = Counter()
        for line in (self._folder / "audit.log").read_text().splitlines():
            with contextlib.suppress(ValueError):
                one = json.loads(line)
                kind = one.get("objectRef", {})
                what = "/".join(filter(None, (kind.get("resource", ""), kind.get("subresource", ""))))
                found[one.get("userAgent", "").split("/")[0], one["verb"], what] += 1
        return found

    def memory(self) -> dict[str, float]:
        """Return the resident memory of each program, in MB."""
        sizes = {}
        for name, program in self.programs.items():
            status = Path(f"/proc/{program.pid}/status").read_text()
            sizes[name] = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        return sizes

    def _run(self, name: str, *command: str | Path, **env: str) -> None:
        log = (self._folder / f"{name}.log").open("wb")
        self.programs[name] = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *map(str, command)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | env,
        )

    def _start_control_plane(self) -> None:
        folder, bin_ = self._folder, find_programs() / "kubernetes"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
            (folder / name).symlink_to(bin_)
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._run("etcd", "etcd", "--data-dir", folder / "etcd", "--unsafe-no-fsync", "--log-level", "error",
                  "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                  "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}")  # fmt: skip
        (folder / "tokens").write_text(f"{TOKEN},simulated,1,system:masters\n")
        (folder / "audit.yaml").write_text(json.dumps(AUDIT))
        key = folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self._run(
            "kube-apiserver", folder / "kube-apiserver", f"--etcd-servers={client}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={self._port}", f"--cert-dir={folder / 'pki'}",
            f"--token-auth-file={folder / 'tokens'}", "--authorization-mode=AlwaysAllow",
            "--service-account-issuer=https://simulated", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.32.0.0/16",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            f"--audit-policy-file={folder / 'audit.yaml'}", f"--audit-log-path={folder / 'audit.log'}",
        )  # fmt: skip
        self.wait("the API server", lambda: self.client.ask("GET", "/api/v1/namespaces/default"), "kube-apiserver")
        self.config = folder / "kubeconfig"
        here = {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": here}], "users": [{"name": "it", "user": {"token": TOKEN}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }))  # fmt: skip
        common = (f"--kubeconfig={self.config}", "--leader-elect=false", "--bind-address=127.0.0.1")
        self._run("kube-scheduler", folder / "kube-scheduler", *common, f"--secure-port={free_port()}")
        self._run(
            "kube-controller-manager", folder / "kube-controller-manager", *common, f"--secure-port={free_port()}",
            "--controllers=job-controller,endpointslice-controller",
        )  # fmt: skip

    def _make(self, nodes: int) -> None:
        room = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8", "pods": "110"}
        ready = {"type": "Ready", "status": "True"}
        for number in range(nodes):
            node = {"metadata": {"name": f"node-{number}", "labels": {"kubernetes.io/hostname": f"node-{number}"}}}
            status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
            self.client.ask("POST", "/api/v1/nodes", node)
            self.client.ask("PATCH", f"/api/v1/nodes/node-{number}/status", status)

    def _start(self, operator: str) -> None:
        module, kinds, *_ = MODULES[operator]
        for file in sorted(find_module(module).glob(kinds)):
            self.kubectl("apply", "--server-side", "-f", file)
        self.wait(f"the kinds of {operator}", self._established, "kube-apiserver")
        if operator in CONFIGS:
            self._start_with_webhooks(operator)
            return
        limits = [f"--kube-api-qps={self._qps}", f"--kube-api-burst={2 * self._qps}"] if self._qps else []
        namespace = {"training-operator": "kubeflow"}.get(operator, operator)
        self.client.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        if operator == "training-operator":
            self._start_training_operator(limits)
        else:
            self._run(operator, find_programs() / operator, f"-kubeConfig={self.config}", *limits)

    def _established(self) -> bool:
        kinds = self.client.ask("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        states = [one.get("status", {}).get("conditions") or [] for one in kinds]  # null at first
        return all({("Established", "True")} <= {(it["type"], it["status"]) for it in state} for state in states)

    def _start_training_operator(self, limits: list[str]) -> None:
        secret = {"metadata": {"name": "training-operator-webhook-cert"}}
        self.client.ask("POST", "/api/v1/namespaces/kubeflow/secrets", secret)
        hooks = {"metadata": {"name": WEBHOOK}, "webhooks": [OFF]}
        self.client.ask("POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", hooks)
        certs = self._folder / "certs"
        (certs / "serving-certs").mkdir(parents=True)
        self._run(
            "training-operator", "unshare", "-m", "sh", "-c",
            f'mkdir -p {CERTS} && mount --bind "$1" {CERTS} && shift && exec "$@"', "sh", certs,
            find_programs() / "training-operator", "--enable-scheme=pytorchjob", f"--kubeconfig={self.config}",
            "--metrics-bind-address=0", "--health-probe-bind-address=0",
            f"--webhook-server-port={free_port()}", *limits,
            MY_POD_NAMESPACE="kubeflow",
        )  # fmt: skip
        path = "/api/v1/namespaces/kubeflow/secrets/training-operator-webhook-cert"
        self.wait(
            "training-operator's certificate", lambda: self.client.ask("GET", path).get("data"), "training-operator"
        )
        for name, text in self.client.ask("GET", path)["data"].items():
            (certs / "serving-certs" / name).write_bytes(base64.b64decode(text))

    def _start_with_webhooks(self, operator: str) -> None:
        """Start a controller whose webhooks the API server asks, with a certificate of ours for this address."""
        certs, port = self._folder / "k8s-webhook-server/serving-certs", free_port()
        if not certs.exists():
            certs.mkdir(parents=True)
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=simulated",
                 "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", certs / "tls.key", "-out", certs / "tls.crt"],
                check=True, capture_output=True,
            )  # fmt: skip
        limits = {"clientConnection": {"qps": self._qps, "burst": 2 * self._qps}} if self._qps else {}
        file = self._folder / f"{operator}.json"
        file.write_text(json.dumps(CONFIGS[operator] | limits | {
            "kind": "Configuration", "webhook": {"host": "127.0.0.1", "port": port}, "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": "0"}, "leaderElection": {"leaderElect": False},
        }))  # fmt: skip
        program = find_programs() / operator
        self._run(operator, program, f"--kubeconfig={self.config}", f"--config={file}", TMPDIR=str(self._folder))
        self.wait(f"the webhooks of {operator}", lambda: answers(port), operator)
        module, _, hooks = MODULES[operator]
        made = yaml.safe_load_all(self.kubectl("kustomize", find_module(module) / hooks))
        authority = base64.b64encode((certs / "tls.crt").read_bytes()).decode()
        for one in made:
            for hook in one.get("webhooks", []):
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
            if "webhooks" in one:
                self.client.ask("POST", f"/apis/admissionregistration.k8s.io/v1/{one['kind'].lower()}s", one)

    def kubectl(self, *words: str | Path) -> str:
        """Run kubectl and return what it prints; raises SimulationError."""
        command = [find_programs() / "kubectl", f"--kubeconfig={self.config}", *words]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SimulationError(f"{' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def wait(self, what: str, look: Any, program: str, seconds: float = SECONDS) -> float:
        """Wait until something is so, and return the seconds; raises SimulationError, with the program's last words."""
        began = time.monotonic()
        while True:
            with contextlib.suppress(LookupError, SimulationError, urllib3.exceptions.HTTPError):
                if look():
                    return time.monotonic() - began
            if time.monotonic() - began > seconds or self.programs[program].poll() is not None:
                said = (self._folder / f"{program}.log").read_text(errors="replace")[-1500:]
                raise SimulationError(f"{what}: not within {seconds:.0f} s. {program} said: {said}")
            time.sleep(0.1)


# Of each operator: its Go module, and there the kinds it looks after and its webhooks
MODULES = {
    "training-operator": ("github.com/kubeflow/training-operator", "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"),
    "mpi-operator": ("github.com/kubeflow/mpi-operator", "manifests/base/kubeflow.org_mpijobs.yaml"),
    "trainer": ("github.com/kubeflow/trainer/v2", "manifests/base/crds/trainer.*.yaml", "manifests/base/webhook"),
    "jobset": ("sigs.k8s.io/jobset", "config/components/crd/bases/*.yaml", "config/components/webhook"),
}
# Certificates are ours: what these make for themselves is for a Service's name
CONFIGS: dict[str, Thing] = {
    "trainer": {"apiVersion": "config.trainer.kubeflow.org/v1alpha1", "certManagement": {"enable": False}},
    "jobset": {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "internalCertManagement": {"enable": False}},
}


def answers(port: int) -> bool:
    """Return whether somebody listens on a port of loopback."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def find_programs() -> Path:
    """Return the folder of the programs that hack/programs has built; raises SimulationError."""
    said = subprocess.run([ROOT / "hack/programs/build", "--where"], capture_output=True, text=True, check=True).stdout
    folder = Path(said.strip())
    lacking = [name for name in PROGRAMS if not (folder / name).exists()] + ["etcd"] * (not shutil.which("etcd"))
    if lacking:
        remedy = "run hack/bootstrap cluster, and hack/programs/build cluster helm3 trainer jobset"
        raise SimulationError(f"not there: {', '.join(lacking)}: {remedy}")
    return folder


def find_module(name: str) -> Path:
    """Return the folder of a Go module, at the version that hack/programs pins."""
    command = ["go", "list", "-m", "-f", "{{.Dir}}", name]
    done = subprocess.run(command, cwd=ROOT / "hack/programs", capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())
