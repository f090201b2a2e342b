"""What the end-to-end tests do to a cluster: helm, kubectl, and waiting for what a release becomes."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KUBECONFIG = os.environ.get("KUBECONFIG") or str(ROOT / "build" / "kubeconfig")
OWN = Path(KUBECONFIG) == ROOT / "build" / "kubeconfig"  # the cluster of `make cluster`, not one of the user's
ENV = {**os.environ, "KUBECONFIG": KUBECONFIG, "PATH": f"{ROOT}/build/bin:{os.environ['PATH']}"}


def run(*command: str | Path, check: bool = True, timeout: float = 300, stdin: str | None = None):
    """Run a command in the project's root; with `check`, an error shows all that it printed."""
    done = subprocess.run(
        [str(c) for c in command],
        cwd=ROOT,
        env=ENV,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} ended {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def kubectl(*args: str, **kwargs) -> str:
    """Run kubectl and return what it prints."""
    return run("kubectl", *args, **kwargs).stdout


def get(kind: str, namespace: str, *args: str) -> list[dict]:
    """Return the objects of a kind."""
    return json.loads(kubectl("get", kind, "-n", namespace, "-o", "json", *args))["items"]


def helm(*args: str | Path, program: str = "helm3", **kwargs):
    """Run one of the pinned Helms."""
    return run(program, *args, **kwargs)


def until(what: str | Callable[[], str], look: Callable[[], object], seconds: float = 120):
    """Return what `look` finds once it finds something; fail with `what` after some seconds."""
    begun = time.monotonic()
    end = begun + seconds
    while not (found := look()):
        now = time.monotonic()
        assert now < end, f"not within {seconds:.0f} s: {what() if callable(what) else what}"
        time.sleep(max(0.5, now - begun))  # looking may cost more than what is looked for
        begun = time.monotonic()
    return found


def why(release: str, namespace: str) -> str:
    """Return what scripts/why says of a release."""
    return run("scripts/why", release, "-n", namespace, check=False).stdout


def follow(release: str, namespace: str, seconds: int) -> str:
    """Follow a release until all of its jobs have succeeded."""
    return run("scripts/follow", release, "-n", namespace, "--timeout", str(seconds), timeout=seconds + 60).stdout


def watch(see: Callable[[dict], object], *what: str) -> subprocess.Popen[str]:
    """Have `see` called, on a thread, with every state that objects go through; whoever watches ends the process."""
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
