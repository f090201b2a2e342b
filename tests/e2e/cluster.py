"""How the end-to-end tests use a cluster: helm, kubectl, and waiting for a release's progress.

What is read again and again is read by the commands' own client: a process of kubectl costs 90 ms of processor time,
eighty times as much.
"""

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tests import patience
from tests.patience import Found
from trainyard.cluster import inventory, kube, up
from trainyard.cluster.errors import KubeError, RefusedError
from trainyard.cluster.watching import passes
from trainyard.cluster.why import explain, show

ROOT = Path(__file__).resolve().parents[2]
KUBECONFIG = os.environ.get("KUBECONFIG") or str(ROOT / "build" / "kubeconfig")
OWN = Path(KUBECONFIG) == ROOT / "build" / "kubeconfig"  # the cluster of `make cluster`, not one of the user's
ENV = {**os.environ, "KUBECONFIG": KUBECONFIG, "PATH": f"{ROOT}/.venv/bin:{ROOT}/build/bin:{os.environ['PATH']}"}
ENV.setdefault("TRAINYARD_PATIENCE", "10")  # the scripts' own seconds: `run` notices what hangs
# What kubectl and Helm say when a busy API server or kubelet has not taken their connection: nothing was done. And what
# trainyard's own commands say: those that `run` and `follow` call may be called again.
NOT_TAKEN = re.compile(
    r"TLS handshake timeout|error dialing backend|Kubernetes cluster unreachable|no answer from https"
)
# What the API server says of an operator's webhook that a busy machine did not let answer in time, or took for broken
NOT_ASKED = re.compile(
    r"failed calling webhook.*"
    r"(context deadline exceeded|Client\.Timeout|i/o timeout|connection refused|no endpoints available)"
)
TRIES = 20  # of a command that says so, most of which take 10 s


def run(*command: str | Path, check: bool = True, stdin: str | None = None):
    """Run a command in the project's root; with `check`, an error shows all that it printed."""
    for _ in range(TRIES):
        done = patience.run([str(c) for c in command], stdin, stirring, cwd=ROOT, env=ENV)
        if done.returncode == 0 or not passes_by(command, done.stderr):
            break
        time.sleep(1)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} ended {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def passes_by(command: tuple[str | Path, ...], said: str) -> bool:
    """Whether the same command may do later what it could not do now; a failed `helm install` keeps its release."""
    late = up.UNKNOWN_RUNTIME.search(said) and "--dry-run=server" not in command
    return bool(NOT_TAKEN.search(said) or late or (NOT_ASKED.search(said) and "install" not in command))


def kubectl(*args: str, **kwargs) -> str:
    """Run kubectl and return what it prints."""
    return run("kubectl", *args, **kwargs).stdout


def get(kinds: str, namespace: str | None, selector: str = "", *, fields: str = "") -> list[dict]:
    """Return the objects of a kind, or of several with commas between, with these labels and fields.

    Of all namespaces for None. Raises AssertionError for a kind that the cluster does not know.
    """
    found = []
    for kind in kinds.split(","):
        listed = answered(partial(kube.listing, kind, namespace, selector, fields))
        assert listed is not None, f"the cluster does not know {kind}"
        found += listed[0]
    return found


def log(pod: str, namespace: str, container: str = "") -> str:
    """Return what a container has printed, or its pod's only one; nothing before it starts."""
    with contextlib.suppress(RefusedError):
        return answered(lambda: "".join(f"{line}\n" for line in kube.log_lines(pod, namespace, container)))
    return ""


def helm(*args: str | Path, program: str = "helm3", **kwargs):
    """Run one of the pinned Helms; it waits as long as it has to, unless a time is given: `run` notices what hangs."""
    patient = ("--timeout", "24h") if "--wait" in args and "--timeout" not in args else ()
    return run(program, *args, *patient, **kwargs)


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


def until(what: str | Callable[[], str], look: Callable[[], Found], pause: float = 0.2) -> Found:
    """Return what `look` finds once it finds something; fail with `what` when the cluster makes no more progress.

    It looks once in `pause` seconds at most.
    """

    def asked() -> Found | None:
        try:
            return look()
        except KubeError as error:
            if not passes(error):  # a busy API server is asked again
                raise
        return None

    found = patience.wait(what, asked, stirring, pause=pause)
    assert found is not None
    return found


def answered(ask: Callable[[], Found]) -> Found:
    """Return the API server's answer; a server that is too busy for one is asked again."""
    try:
        return ask()
    except KubeError as error:
        if not passes(error):
            raise
        return until(str(error), lambda: (ask(),))[0]


def serves(kind: str) -> bool:
    """Whether kubectl and Helm find a kind: they are told of a definition, or of its end, after it has been stored."""
    group = kind.partition(".")[2]
    return kind in kubectl("api-resources", "-o", "name", f"--api-group={group}", check=False).split()


def why(release: str, namespace: str) -> str:
    """Return what trainyard why says of a release: what the command prints, without half a second for its process.

    A test that changes the definition of a job's kind clears `inventory.definition`, which a process reads once.
    """

    def said() -> str:
        objects = inventory.read_all(release, namespace)
        return show(explain(release, namespace, objects, datetime.now(UTC)))

    return answered(said)


def follow(release: str, namespace: str) -> str:
    """Follow a release until all of its jobs have succeeded; fail when the cluster makes no more progress."""
    for _ in range(TRIES):
        code, said = follow_once(release, namespace)
        if code == 0 or not NOT_TAKEN.search(said):
            break
    assert code == 0, said
    return said


def follow_once(release: str, namespace: str) -> tuple[int, str]:
    """Return how following ended, and what was said."""
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
    return process.returncode, "".join(said)


def watch(see: Callable[[dict], object], kind: str, namespace: str) -> Callable[[], None]:
    """Call `see`, on a thread, with every state that objects of a kind go through; return a function that ends it.

    A watch that a busy API server ends continues where it was.
    """
    over = threading.Event()

    def show_all() -> str:
        listed = kube.listing(kind, namespace)
        assert listed is not None, f"the cluster does not know {kind}"
        for one in listed[0]:
            see(one)
        return listed[1]

    def keep(version: str) -> None:
        while not over.is_set():
            try:
                version = version or show_all()
                for change, one in kube.changes(kind, namespace, version):
                    version = one["metadata"]["resourceVersion"]
                    if change != "BOOKMARK" and not over.is_set():
                        see(one)
            except KubeError as error:
                if not passes(error) and not over.is_set():
                    raise
                if isinstance(error, RefusedError):
                    version = ""  # too old to watch from: all objects are listed again
            over.wait(1)  # a server may end watches at once

    threading.Thread(target=keep, args=(answered(show_all),), daemon=True).start()
    return over.set


def lines(path: Path) -> list[dict]:
    """Read a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]
