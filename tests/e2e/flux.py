"""Flux's source and Helm controllers as processes beside the one-node cluster, and what they say of their objects.

They look at one namespace, whose objects they change with the rights of the cluster's administrator.
"""

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from tests import ports
from tests.e2e import cluster, owners
from tests.e2e.cluster import kubectl, until

HELM_RELEASE = "helmreleases.helm.toolkit.fluxcd.io"
OCI_REPOSITORY = "ocirepositories.source.toolkit.fluxcd.io"
GIT_REPOSITORY = "gitrepositories.source.toolkit.fluxcd.io"
HELM_CHART = "helmcharts.source.toolkit.fluxcd.io"


def remove_kinds() -> None:
    """Delete the kinds, with all objects of them: also those that no controller is there to let go."""
    for name in kubectl("get", "crds", "-l", f"{owners.MARK}=e2e", "-o", "name").split():
        kind = name.rpartition("/")[2]
        if not kind.endswith(".toolkit.fluxcd.io"):
            continue
        for one in json.loads(kubectl("get", kind, "-A", "-o", "json"))["items"]:
            home = ("-n", one["metadata"]["namespace"])
            patch = ("--type=merge", "-p", '{"metadata": {"finalizers": null}}')
            kubectl("patch", kind, one["metadata"]["name"], *home, *patch, check=False)  # it may be gone
        kubectl("delete", "crd", kind, "--ignore-not-found")


def make_kinds() -> None:
    """Define the kinds of the modules from which the controllers are built."""
    for path in cluster.run("hack/flux/build", "--crds").stdout.split():
        one = yaml.safe_load(Path(path).read_text())
        one["metadata"]["labels"] = one["metadata"].get("labels", {}) | owners.LABELS
        kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(one))
        kubectl("wait", "--for=condition=Established", f"crd/{one['metadata']['name']}", "--timeout=24h")


@contextlib.contextmanager
def running(namespace: str, folder: Path) -> Iterator[Path]:
    """Let both controllers work in a namespace while the block runs; yield the folder of their logs."""
    programs = Path(cluster.run("hack/flux/build").stdout.strip())
    remove_kinds()
    make_kinds()
    port = ports.free(3)
    served = f"127.0.0.1:{port}"
    flags = {
        "source-controller": [
            f"--storage-path={folder / 'storage'}", f"--storage-addr={served}", f"--storage-adv-addr={served}",
        ],
        "helm-controller": ["--graceful-shutdown-timeout=10s"],
    }  # fmt: skip
    (folder / "storage").mkdir(parents=True)
    (folder / "tmp").mkdir()
    own = {"RUNTIME_NAMESPACE": namespace, "KUBECONFIG": cluster.KUBECONFIG, "PATH": os.environ["PATH"]}
    own |= dict.fromkeys(("HOME", "TMPDIR"), str(folder / "tmp"))  # nothing else: the tests' environment trusts the CA
    with contextlib.ExitStack() as stack:
        stack.callback(remove_kinds)
        for number, (name, more) in enumerate(flags.items(), 1):
            health = f"--health-addr=127.0.0.1:{port + number}"
            # a test run that is killed leaves none behind
            command = [
                "setpriv",
                "--pdeathsig=KILL",
                programs / name,
                "--watch-all-namespaces=false",
                "--metrics-addr=0",
                health,
                *more,
            ]
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(command, env=own, stdout=log, stderr=log)
            stack.callback(end, process)
        yield folder


def end(process: subprocess.Popen[bytes]) -> None:
    """End a controller, and wait until it has ended."""
    process.terminate()
    process.wait()


def read(kind: str, name: str, namespace: str) -> dict:
    """Return an object of Flux."""
    (found,) = cluster.get(kind, namespace, fields=f"metadata.name={name}")
    return found


def condition(one: dict, name: str = "Ready") -> dict:
    """Return a condition of an object, or nothing if it has none of that name."""
    return next((c for c in one.get("status", {}).get("conditions", []) if c["type"] == name), {})


def settled(one: dict) -> bool:
    """Whether what Flux says is about the object as it is, and it does nothing more for it now."""
    seen = one.get("status", {}).get("observedGeneration")
    return seen == one["metadata"]["generation"] and condition(one).get("status") in ("True", "False")


def ready(one: dict) -> bool:
    """Whether an object is as it asks to be."""
    return settled(one) and condition(one)["status"] == "True"


def drifted(one: dict) -> bool:
    """Whether Flux finds that an object of a HelmRelease is not as the chart has it."""
    return condition(one, "Drifted").get("status") == "True"


def becomes(kind: str, name: str, namespace: str, wanted: Callable[[dict], object], what: str) -> dict:
    """Wait until an object is as wanted, and return it."""
    last: dict = {}

    def look() -> object:
        nonlocal last
        last = read(kind, name, namespace)
        return wanted(last)

    until(lambda: f"{kind}/{name} {what}: {json.dumps(last.get('status'), indent=1)}", look)
    return last


def reconcile(kind: str, name: str, namespace: str) -> dict:
    """Have Flux look at an object now; return it once that has been done, or while it sets back what drifts."""
    token = secrets.token_hex(4)
    kubectl("annotate", kind, name, "-n", namespace, "--overwrite", f"reconcile.fluxcd.io/requestedAt={token}")
    return becomes(
        kind, name, namespace,
        lambda one: (settled(one) or drifted(one)) and one["status"].get("lastHandledReconcileAt") == token,
        "was looked at",
    )  # fmt: skip
