"""How the end-to-end tests use a cluster: helm, kubectl, and waiting for a release's progress.

What is read again and again is read by the commands' own client: a process of kubectl costs 90 ms of processor time,
eighty times as much.
"""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from tests import patience
from tests.patience import Found
from trainyard.cluster import kube
from trainyard.cluster.errors import KubeError, UnreachableError

ROOT = Path(__file__).resolve().parents[2]
KUBECONFIG = os.environ.get("KUBECONFIG") or str(ROOT / "build" / "kubeconfig")
OWN = Path(KUBECONFIG) == ROOT / "build" / "kubeconfig"  # the cluster of `make cluster`, not one of the user's
ENV = {**os.environ, "KUBECONFIG": KUBECONFIG, "PATH": f"{ROOT}/.venv/bin:{ROOT}/build/bin:{os.environ['PATH']}"}


def run(*command: str | Path, check: bool = True, stdin: str | None = None):
    """Run a command in the project's root; with `check`, an error shows all that it printed."""
    done = patience.run([str(c) for c in command], stdin, stirring, cwd=ROOT, env=ENV)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} ended {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def kubectl(*args: str, **kwargs) -> str:
    """Run kubectl and return what it prints."""
    return run("kubectl", *args, **kwargs).stdout


def get(kinds: str, namespace: str | None, selector: str = "", *, fields: str = "") -> list[dict]:
    """Return the objects of a kind, or of several with commas between, with these labels and fields.

    Of all namespaces for None. Raises AssertionError for a kind that the cluster does not know.
    """
    found = []
    for kind in kinds.split(","):
        listed = kube.listing(kind, namespace, selector, fields)
        assert listed is not None, f"the cluster does not know {kind}"
        found += listed[0]
    return found


def log(pod: str, namespace: str, container: str = "") -> str:
    """Return what a container has printed, or its pod's only one; nothing before it starts."""
    with contextlib.suppress(KubeError):
        return kube.logs(pod, namespace, container)
    return ""


def helm(*args: str | Path, program: str = "helm3", **kwargs):
    """Run one of the pinned Helms."""
    return run(program, *args, **kwargs)


def sample() -> Path:
    """Return the demo's archive of real pictures; it is written on first use."""
    cache = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))
    path = cache / "sample" / "fashion.zip"
    if not path.exists():
        run(".venv/bin/python", "scripts/demo/make_archive.py", path)
    return path


def stirring() -> object:
    """Return what changes while anything happens in the cluster: its pods, their events and the size of their logs."""
    objects: list[str] = []
    with contextlib.suppress(KubeError):
        for kind in ("pods", "events"):
            found = kube.items(kind, None, accept=kube.METADATA)
            objects += [one["metadata"]["uid"] + one["metadata"]["resourceVersion"] for one in found]
    node = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard")) / "run/node.pid"
    return objects, bytes_of(Path("/proc", node.read_text().strip(), "root/var/log/pods")) if OWN else 0


def bytes_of(folder: Path) -> int:
    """Return the size of all files in a folder, from which others remove some meanwhile."""
    total = 0
    for within, _, names in os.walk(folder):  # which passes over folders that are gone
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(within, name).lstat().st_size
    return total


def until(what: str | Callable[[], str], look: Callable[[], Found]) -> Found:
    """Return what `look` finds once it finds something; fail with `what` when the cluster makes no more progress."""

    def asked() -> Found | None:
        with contextlib.suppress(UnreachableError):  # a busy API server: it is asked again
            return look()
        return None

    found = patience.wait(what, asked, stirring)
    assert found is not None
    return found


def why(release: str, namespace: str) -> str:
    """Return what trainyard why says of a release."""
    return run("trainyard", "why", release, "-n", namespace, check=False).stdout


def follow(release: str, namespace: str) -> str:
    """Follow a release until all of its jobs have succeeded; fail when the cluster makes no more progress."""
    command = ["trainyard", "follow", release, "-n", namespace, "--timeout", "86400"]
    with subprocess.Popen(
        command, cwd=ROOT, env=ENV, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(process.stdout or ()))
        reader.start()
        try:
            until(lambda: "".join(said) + why(release, namespace), lambda: process.poll() is not None)
        finally:
            process.kill()
            reader.join()
    assert process.returncode == 0, "".join(said)
    return "".join(said)


def watch(see: Callable[[dict], object], *what: str) -> subprocess.Popen[str]:
    """Call `see`, on a thread, with every state that objects go through; the caller ends the process."""
    process = subprocess.Popen(
        ["kubectl", "get", *what, "-w", "-o", "json"], env=ENV, text=True, stdout=subprocess.PIPE
    )

    def read() -> None:
        text = ""
        for line in process.stdout or ():
            text += line
            if line.rstrip() == "}":
                see(json.loads(text))
                text = ""

    threading.Thread(target=read, daemon=True).start()
    return process


def lines(path: Path) -> list[dict]:
    """Read a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]
