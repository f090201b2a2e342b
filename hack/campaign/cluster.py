"""What a campaign does with the cluster of `make cluster NODES=3`: kubectl, faults, and a look at the run's files.

The run's files are read on the file server's own disk, since calls on a volume hang where the server or a cable does.
"""

import contextlib
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from trainyard.telemetry.metrics import read_lines

ROOT = Path(__file__).resolve().parents[2]
STATE = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard"))
FIRST, SECOND = "trainyard", "trainyard-2"  # the first has the control plane, and can only be drained or slow
LATE = 20  # seconds that kubectl waits for an API server
Pod = dict[str, Any]
# Sends a signal to the ranks in a container, which are told from their launcher by the variables of a rank
SIGNAL = """\
import os, pathlib, sys
for place in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        told = (place / "environ").read_bytes()
        ranks = b"\\0LOCAL_RANK=" in told or b"\\0OMPI_COMM_WORLD_RANK=" in told
        if ranks and b"trainers." in (place / "cmdline").read_bytes():
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


def kubectl(*args: str, stdin: str | None = None) -> str:
    """Run kubectl on the cluster; raises CommandError."""
    given = ("--kubeconfig", STATE / "run/admin.conf", f"--request-timeout={LATE}s")
    return run(ROOT / "build/bin/kubectl", *given, *args, stdin=stdin, limit=6 * LATE)


def fault(*words: str) -> None:
    """Make a fault, or undo it (`--undo`); raises CommandError."""
    run(ROOT / "hack/cluster/fault", *words)


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


def node_of(pod: Pod) -> str:
    """Return a pod's node."""
    return str(pod["spec"].get("nodeName", ""))


def is_ready(node: str) -> bool:
    """Whether Kubernetes holds a node for ready; raises CommandError."""
    path = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    return kubectl("get", "node", node, "-o", path) == "True"


def keep_operators_on_first_node() -> None:
    """Keep what runs jobs off the nodes that die, as clusters do that have nodes for it."""
    wanted = {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": FIRST}}}}}
    for place in ("kube-system/coredns", "kubeflow/training-operator", "mpi-operator/mpi-operator",
                  "local-path-storage/local-path-provisioner"):  # fmt: skip
        namespace, name = place.split("/")
        kubectl("patch", "deployment", name, "-n", namespace, "-p", json.dumps(wanted))
        kubectl("rollout", "status", f"deployment/{name}", "-n", namespace, "--timeout=100s")


def run_folder(namespace: str, release: str) -> Path | None:
    """Return the run directory on the file server's disk; None before there is one."""
    pid = (STATE / "run/node-0/node.pid").read_text().strip()
    disk = Path(f"/proc/{pid}/root{STATE}/run/node-0/disk")
    return next(disk.glob(f"*_{namespace}_{release}-results/runs/{release}"), None)


def events(namespace: str, release: str) -> list[dict[str, Any]]:
    """Return the lines of the run's metrics; none before there are any."""
    folder = run_folder(namespace, release)
    return read_lines(folder / "metrics.jsonl") if folder and (folder / "metrics.jsonl").exists() else []


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
