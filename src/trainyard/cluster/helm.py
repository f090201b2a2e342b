"""Run Helm, which installs, upgrades and uninstalls releases."""

import os
import shutil
import subprocess
import sys

from trainyard.cluster import connection
from trainyard.cluster.errors import KubeError

REMEDY = "install Helm 3.14 or later (https://helm.sh/docs/intro/install)"


def program() -> str:
    """Return the pinned helm of build/bin, else the one on PATH; raises KubeError where there is none."""
    pinned = connection.ROOT / "build" / "bin" / "helm"
    found = str(pinned) if pinned.exists() else shutil.which("helm") or shutil.which("helm3")
    if not found:
        raise KubeError(f"helm is not on PATH: {REMEDY}")
    return found


def run(*arguments: str, quiet: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run helm in the user's cluster; show what it prints, its errors as they are.

    With `quiet` its output is only returned, in `stdout`. Errors are shown and returned in `stderr`.
    """
    command = [program(), *arguments]
    environment = {**os.environ, "KUBECONFIG": connection.kubeconfig()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not quiet:
        print(done.stdout, end="", flush=True)
    print(done.stderr, end="", file=sys.stderr, flush=True)
    return done


def template(release: str, *arguments: str, values: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Render a chart, without a cluster; `values` is what `-f -` reads. Raises KubeError where there is no Helm."""
    command = [program(), "template", release, *arguments]
    return subprocess.run(command, input=values, capture_output=True, text=True, check=False)
