"""The owner of a run directory: the job and the release that this process belongs to; all others are refused.

Namespaces may share a volume (two PersistentVolumes of one export), and releases of different teams may have the same
name; a run directory remembers both, and continues for its owner alone.
"""

import os
from pathlib import Path

from trainyard.core.exits import UserError
from trainyard.run import fence, lease_files


class TakenOverError(UserError):
    """The run directory is another job's: this one ends and writes nothing there."""


class StrangerError(TakenOverError):
    """The run directory is another release's."""


def job_name() -> str:
    """Return the job that this process belongs to, as the cluster sets it; a changed run is another job."""
    return os.environ.get("TRAINYARD_JOB", "")


def owner_name() -> str:
    """Return the release that this process belongs to, as `namespace/release`; empty outside a cluster."""
    namespace, release = os.environ.get("TRAINYARD_NAMESPACE", ""), os.environ.get("TRAINYARD_RELEASE", "")
    return f"{namespace}/{release}" if namespace and release else ""


def refuse_strangers(root: Path, owner: str, adopt: bool) -> None:
    """Raise StrangerError if a run directory belongs to another release than this process; changes nothing there.

    A directory without an owner belongs to what takes its lease; a process without one, at a shell, is no stranger.
    """
    me = owner_name()
    if me and owner and owner != me and not adopt:
        raise StrangerError(
            f"{root} belongs to release {owner} (namespace/release), and this is {me}: two runs on one volume have the "
            "same name. Give this run another name (run.dir, on a cluster global.training.name), or set run.adopt to "
            "true (global.training.config.run.adopt) if this release shall continue that run from now on"
        )


def refuse_strangers_of(root: Path, adopt: bool = False) -> None:
    """Raise StrangerError if the newest lease there is another release's; raises OSError, too."""
    if owner_name() and (record := find_newest(root)):
        refuse_strangers(root, record.owner, adopt)


def find_newest(root: Path) -> fence.Record | None:
    """Find the newest lease of a run directory, changing nothing; raises OSError."""
    return fence.newest(lease_files, root, look_only=True)


def of_another_job(root: Path) -> bool:
    """Whether another job has a run directory and is at work there; False where that cannot be told."""
    try:
        newest = find_newest(root)
    except OSError:
        return False
    return newest is not None and not newest.released and newest.job != job_name()
