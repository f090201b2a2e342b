"""Several test runs on one cluster: labels that name an object's owner, and a lock for changes to the whole cluster.

A process that is no longer there owns nothing: what it left may be deleted. One that is there keeps what it made, in
this run's other workers and in other runs.
"""

import fcntl
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from tests.e2e import cluster
from trainyard.cluster import kube

MARK = "trainyard.test"  # label of what tests make outside their namespaces, and of these
OWNER = f"{MARK}/owner"
# What may be left over; of a kind that this cluster does not know nothing is found
KINDS = ("applicationsets.argoproj.io", "applications.argoproj.io", "namespaces", "persistentvolumes", "nodes")
KINDS += ("storageclasses.storage.k8s.io", "deployments.apps", "configmaps", "secrets", "leases.coordination.k8s.io")
KINDS += tuple(f"{kind}.kueue.x-k8s.io" for kind in ("clusterqueues", "resourceflavors", "workloadpriorityclasses"))
KINDS += tuple(
    f"{effect}admission{what}.admissionregistration.k8s.io"
    for effect in ("validating", "mutating")
    for what in ("policybindings", "policies")
)
KINDS += ("validatingwebhookconfigurations.admissionregistration.k8s.io",)
KINDS += ("customresourcedefinitions.apiextensions.k8s.io",)


def place() -> str:
    """Name the only processes that can be looked for: those since this boot, in this namespace of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return f"{boot[:8]}-{Path('/proc/self/ns/pid').stat().st_ino}"


def owner(pid: int) -> str:
    """Name a process for all time: another one may get its number later. Nothing, when it is not there."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
    return f"{place()}-{pid}-{started}"


LABELS = {MARK: "e2e", OWNER: owner(os.getpid())}


def ended(name: str) -> bool:
    """Return whether the process of that name is known to have ended; of another machine's nothing is known."""
    if not name:
        return True
    where, pid, _ = name.rsplit("-", 2)
    return where == place() and owner(int(pid)) != name


def delete_leftovers() -> None:
    """Delete what test runs that were killed in the middle left in the cluster."""
    for kind in KINDS:
        found = cluster.answered(partial(kube.items, kind, None, f"{MARK}=e2e", accept=kube.METADATA))
        for meta in (one["metadata"] for one in found):
            if ended(meta["labels"].get(OWNER, "")):
                remove(kind, {"metadata": meta}, {MARK: "e2e"})


def delete(kind: str, name: str, namespace: str | None = None) -> None:
    """Delete what this process has made outside of its namespaces; another's of that name stays."""
    found = cluster.answered(partial(kube.items, kind, namespace, kube.selector(LABELS), f"metadata.name={name}"))
    for one in found:
        remove(kind, one, LABELS)


def require_absent(kind: str, name: str) -> None:
    """Fail where an object of a fixed name, that a page's commands make, is there: it is somebody's."""
    found = cluster.answered(partial(kube.items, kind, None, "", f"metadata.name={name}"))
    assert not found, f"{kind}/{name} is there already: kubectl delete {kind} {name}, if nobody needs it"


def adopt(kind: str, name: str, namespace: str = "") -> None:
    """Label what a page's commands have made for a test as its own; it may not be there."""
    home = ("-n", namespace) if namespace else ()
    cluster.kubectl("label", kind, name, *home, *(f"{key}={value}" for key, value in LABELS.items()), check=False)


def remove(kind: str, thing: dict, labels: dict[str, str]) -> None:
    """Delete an object that was seen with these labels, by its uid; it may be gone already."""
    home = thing["metadata"].get("namespace", "")
    cluster.answered(lambda: (kube.delete(kind, home, thing, labels),))


def share(alone: bool, mend: Callable[[], None], say: Callable[[str], None]) -> TextIO | None:
    """Wait until this process may use the one-node cluster: beside others, or `alone`. Held until the file is closed.

    Whoever finds nobody else mends what a killed run may have left changed for all.
    """
    run = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard")) / "run"
    if not cluster.OWN or not run.exists():
        return None
    lock = (run / "tests.lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for other tests on this cluster ({run}/tests.lock)")
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            return lock
    mend()
    if not alone:
        fcntl.flock(lock, fcntl.LOCK_SH)
    return lock
