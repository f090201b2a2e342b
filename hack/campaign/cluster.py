"""What a campaign does with the cluster of `make cluster NODES=3`: kubectl, faults, and a look at the run's files.

The run's files are read on the file server's own disk, since calls on a volume hang where the server or a cable does.
"""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.telemetry.metrics import read_lines

ROOT = Path(__file__).resolve().parents[2]
STATE = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard"))
FIRST, SECOND = "trainyard", "trainyard-2"  # the first has the control plane, and can only be drained or slow
LATE = 20  # seconds that kubectl waits for an API server
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
# What runs jobs and gives them names and volumes; of Kubeflow Trainer only where it is installed
OPERATORS = (
    "kube-system/coredns", "local-path-storage/local-path-provisioner", "kubeflow/training-operator",
    "mpi-operator/mpi-operator", "jobset-system/jobset-controller-manager",
    "kubeflow-system/kubeflow-trainer-controller-manager",
)  # fmt: skip
Pod = dict[str, Any]
# Sends a signal to a rank in a container, which is told from its launcher by the variables of a rank
SIGNAL = """\
import os, pathlib, sys
for place in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        told = (place / "environ").read_bytes()
        ranks = b"\\0LOCAL_RANK=" in told or b"\\0OMPI_COMM_WORLD_RANK=" in told
        command = (place / "cmdline").read_bytes()
        if ranks and (b"trainers." in command or b"/peer.py" in command):
            os.kill(int(place.name), int(sys.argv[1]))
            print(place.name)
            break
    except OSError:
        continue
"""


class CommandError(Exception):
    """A command failed; the text is what it printed."""


def run(*command: str | Path, stdin: str | None = None, limit: float | None = None) -> str:
    """Run a command in the project's root and return what it prints; raises CommandError."""
    try:
        done = subprocess.run(
            list(map(str, command)), input=stdin, capture_output=True, text=True, check=False, cwd=ROOT, timeout=limit
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{command[0]} took more than {limit} s") from error
    if done.returncode:
        raise CommandError(f"{' '.join(map(str, command))} ended {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def wait(what: str, look: Callable[[], bool], limit: float) -> None:
    """Wait until something is so; raises CommandError after `limit` seconds."""
    end = time.monotonic() + limit
    while not look():
        if time.monotonic() > end:
            raise CommandError(f"{what}: not within {limit:.0f} s")
        time.sleep(1.0)


def succeeds(do: Callable[[], object]) -> bool:
    """Do something; False where a command of it failed."""
    try:
        do()
    except CommandError as error:
        print(str(error).strip()[-500:], flush=True)
        return False
    return True


def kubectl(*args: str, stdin: str | None = None) -> str:
    """Run kubectl on the cluster; raises CommandError."""
    given = ("--kubeconfig", STATE / "run/admin.conf", f"--request-timeout={LATE}s")
    return run(ROOT / "build/bin/kubectl", *given, *args, stdin=stdin, limit=6 * LATE)


def helm(*args: str | Path, limit: float | None = None) -> str:
    """Run Helm on the cluster; raises CommandError."""
    return run(ROOT / "build/bin/helm3", "--kubeconfig", STATE / "run/admin.conf", *args, limit=limit)


def fault(*words: str) -> str:
    """Make a fault, or undo it (`--undo`); raises CommandError."""
    return run(ROOT / "hack/cluster/fault", *words)


def mend() -> None:
    """Undo all faults, also one that is half made or undone, and put all nodes in service; raises CommandError."""
    if not succeeds(lambda: fault("--undo")):
        for line in fault("--list").splitlines():
            if line.startswith("kill "):  # a node that has not started: from the beginning
                fault(*line.split())
        fault("--undo")
    put_in_service("--all")


def put_in_service(node: str) -> None:
    """Take the taint out-of-service off a node, or off `--all`; raises CommandError."""
    try:
        kubectl("taint", "nodes", node, f"{OUT_OF_SERVICE}-")
    except CommandError as error:
        if "not found" not in str(error):
            raise


def pods(namespace: str, release: str) -> list[Pod]:
    """Return the pods of a release that hold ranks, in the order of their names; raises CommandError."""
    text = kubectl("get", "pods", "-n", namespace, "-l", f"app.kubernetes.io/instance={release}", "-o", "json")
    role = "training.kubeflow.org/job-role"
    found = [pod for pod in json.loads(text)["items"] if pod["metadata"]["labels"].get(role) != "launcher"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def is_told_to_end(pod: Pod) -> bool:
    """Whether somebody has deleted a pod that is still there."""
    return "deletionTimestamp" in pod["metadata"]


def has_ended(pod: Pod) -> bool:
    """Whether a pod is told to end, or a container of it has ended."""
    statuses = pod["status"].get("containerStatuses", [])
    return is_told_to_end(pod) or any("terminated" in status["state"] or status.get("lastState") for status in statuses)


def signal_rank(namespace: str, pod: str, number: int) -> None:
    """Send a signal to one rank in a pod; raises CommandError."""
    if not kubectl("exec", "-n", namespace, pod, "--", "python", "-c", SIGNAL, str(number)).strip():
        raise CommandError(f"no rank runs in {pod}")


def trains(namespace: str, pod: Pod) -> bool:
    """Whether a rank runs in a pod."""
    try:
        signal_rank(namespace, str(pod["metadata"]["name"]), 0)
    except CommandError:
        return False
    return True


def seconds_running(pod: Pod) -> float:
    """Return for how long the container of a pod has run; 0 for one that does not."""
    started = [status["state"]["running"]["startedAt"] for status in pod["status"].get("containerStatuses", [])
               if "running" in status["state"]]  # fmt: skip
    if not started or is_told_to_end(pod):
        return 0.0
    return time.time() - datetime.fromisoformat(max(started)).timestamp()


def node_of(pod: Pod) -> str:
    """Return a pod's node."""
    return str(pod["spec"].get("nodeName", ""))


def is_ready(node: str) -> bool:
    """Whether Kubernetes holds a node for ready; raises CommandError."""
    path = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    return kubectl("get", "node", node, "-o", path) == "True"


def keep_operators_on_first_node() -> None:
    """Keep what runs jobs off the nodes that die, as clusters do that have nodes for it; raises CommandError."""
    wanted = {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": FIRST}}}}}
    names = '{range .items[*]}{.metadata.namespace}/{.metadata.name}{"\\n"}{end}'
    there = kubectl("get", "deployments", "-A", "-o", f"jsonpath={names}").split()
    known = [place.split("/") for place in OPERATORS if place in there]
    for namespace, name in known:
        kubectl("patch", "deployment", name, "-n", namespace, "-p", json.dumps(wanted))
    for namespace, name in known:
        asked = ("rollout", "status", f"deployment/{name}", "-n", namespace, "--timeout=100s")
        wait(f"{name} on the first node", partial(succeeds, partial(kubectl, *asked)), 600.0)


def run_folder(namespace: str, release: str) -> Path | None:
    """Return the run directory on the file server's disk; None before there is one."""
    pid = (STATE / "run/node-0/node.pid").read_text().strip()
    disk = Path(f"/proc/{pid}/root{STATE}/run/node-0/disk")
    return next(disk.glob(f"*_{namespace}_{release}-results/runs/{release}"), None)


def events(namespace: str, release: str) -> list[dict[str, Any]]:
    """Return the lines of the run's metrics, in the order of their times; none before there are any."""
    folder = run_folder(namespace, release)
    found = read_lines(folder / "metrics.jsonl") if folder else []
    return sorted(found, key=lambda event: float(event.get("time", 0.0)))


class Watch:
    """Notes, on a thread, when a pod of the run was first seen to end, or to be gone."""

    def __init__(self, namespace: str, release: str) -> None:
        self.signs: list[float] = []
        self._of = namespace, release
        self._seen: dict[str, bool] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._closed.wait(1.0):
            with contextlib.suppress(CommandError):
                now = {pod["metadata"]["uid"]: has_ended(pod) for pod in pods(*self._of)}
                if any(not ended and now.get(uid, True) for uid, ended in self._seen.items()):
                    self.signs.append(time.time())
                self._seen = now

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        self._thread.join()
