"""Which versions run: asked of the programs themselves, since Go writes a program's module and its version into it.

An image's tag is not enough: the operators of the one-node cluster, which are a part of it, have none with a version.
"""

import functools
import importlib.metadata
import json
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from hack.compatibility.rows import modules, packages
from tests.e2e import cluster

PROGRAMS = ("manager", "mpi-operator", "argocd", "helm-controller", "source-controller")  # names of controllers' files
MARK = bytes.fromhex("3077af0c9274080241e1c107e6d618e6")  # before what Go writes
FILES = {"Helm 3": "helm3", "Helm 4": "helm4"}  # in build/bin


def version(name: str) -> str:
    """Return the version of a program of hack/compatibility/rows.yaml that runs; empty where it is not known for sure.

    Of a cluster of the user's own that is all but Kubernetes, since its processes are elsewhere.
    """
    if name == "Kubernetes":
        done = cluster.run("kubectl", "get", "--raw", "/version", check=False)
        return str(json.loads(done.stdout)["gitVersion"]).removeprefix("v") if done.returncode == 0 else ""
    if name in packages():
        return importlib.metadata.version(name).partition("+")[0]
    if name in FILES:
        return main_module(str(cluster.ROOT / "build" / "bin" / FILES[name]))[1]
    if not cluster.OWN:
        return ""
    found = {told for path in controllers() for module, told in [main_module(path)] if module == modules()[name]}
    return found.pop() if len(found) == 1 else ""  # one that ends beside the next is neither


def controllers() -> Iterator[str]:
    """Yield the files of the controllers that run on this machine."""
    for path in Path("/proc").glob("[0-9]*/exe"):
        try:
            if Path(path.readlink()).name in PROGRAMS:
                yield str(path)
        except OSError:  # it has ended
            continue


def main_module(path: str) -> tuple[str, str]:
    """Return the module of a Go program's main package, and its version; empty of any other file."""
    try:
        found = Path(path).stat()
        return _main_module(path, (found.st_dev, found.st_ino, found.st_mtime_ns))
    except (OSError, ValueError):  # it has ended, or is empty
        return "", ""


@functools.lru_cache
def _main_module(path: str, which: tuple[int, int, int]) -> tuple[str, str]:
    """Read a program's module; `which` file it is makes another answer of another program with the same number."""
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(MARK + b"path\t")
        text = data[start : start + 2000] if start >= 0 else b""
    said = re.search(rb"\nmod\t(\S+)\tv(\S+)", text)
    return (said[1].decode(), said[2].decode()) if said else ("", "")
