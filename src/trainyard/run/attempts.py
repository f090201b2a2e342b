"""Counts the starts of a pod that are killed before training begins, so that none is recreated without end.

restarts/launch-POD.note   starts in a row of a pod whose launcher neither ended by itself nor connected its processes

The kernel may kill a whole container where its memory limit is too small, before rank 0 counts the start (starts.py);
operators recreate such a pod without a bound. The launcher counts first, and forgets the count when it ends by itself,
is stopped, or its processes have connected: from there on the run's own count applies.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.core.files import peek_json, whole
from trainyard.core.storage import storage
from trainyard.run import owner

MOST_TRIES = 4  # as many starts as run.max_restarts allows by default


def count_and_run(main: Callable[[], int]) -> int:
    """Run the launcher's main function as a counted start; raises ExitError once MOST_TRIES in a row were killed."""
    folder = run_folder(sys.argv)
    if folder is None or not _is_ours(folder):
        return main()
    note = _note(folder)
    tries = whole(peek_json(note), "tries")
    if tries >= MOST_TRIES:
        forget(folder)  # a person who deletes the job and tries again begins anew
        raise ExitError(_killed(tries), Exit.FAILED)
    with contextlib.suppress(OSError, UserError, ExitError):  # storage that cannot be written counts nothing
        note.parent.mkdir(parents=True, exist_ok=True)
        storage.write_json(note, {"tries": tries + 1})
    try:
        return main()
    finally:
        forget(folder)


def run_folder(arguments: Sequence[str]) -> Path | None:
    """Return the run directory of a pod's launcher, from its environment or its settings; None outside a cluster."""
    if not owner.job_name():
        return None
    if logs := os.environ.get("TRAINYARD_LOGS"):
        return Path(logs).parent
    after = arguments[arguments.index("--config") + 1 :] if "--config" in arguments else []
    settings = peek_json(Path(after[0])) if after else {}
    folder = settings["run"].get("dir") if isinstance(settings.get("run"), dict) else None
    return Path(folder) if isinstance(folder, str) else None


def forget(folder: Path) -> None:
    """Forget the killed starts of this pod: it has connected its processes, or ends by itself. Never raises."""
    if owner.job_name():
        with contextlib.suppress(OSError):
            _note(folder).unlink(missing_ok=True)


def forget_on_stop() -> None:
    """Forget the killed starts of this pod, which is stopped from outside. Never raises."""
    if folder := run_folder(sys.argv):
        forget(folder)


def _note(folder: Path) -> Path:
    """Where a pod counts its starts; a recreated pod has the same name."""
    return folder / "restarts" / f"launch-{os.uname().nodename}.note"


def _is_ours(folder: Path) -> bool:
    """Whether the run directory is not another release's, where nothing is written; the ranks say so and end."""
    try:
        owner.refuse_strangers_of(folder)
    except (owner.StrangerError, OSError):
        return False
    return True


def _killed(tries: int) -> str:
    return (
        f"{tries} starts of this pod in a row were killed before training began, as the kernel does where a "
        "container's memory limit is too small: raise global.training.resources.limits.memory (trainyard why and "
        "kubectl get events tell OOMKilled from a node that went away), then upgrade"
    )
