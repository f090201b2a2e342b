"""Counts the starts of a pod that are killed before training begins, so that none is recreated without end.

restarts/launch-POD.note   starts in a row of a pod whose launcher neither ended by itself nor connected its processes
restarts/ended-POD.note    that a program that is none of ours has ended with 0 in all of a pod's processes

The kernel may kill a whole container where its memory limit is too small, before rank 0 counts the start (starts.py);
operators recreate such a pod without a bound. The launcher counts first, and forgets the count when it ends by itself,
is stopped, or its processes have connected: from there on the run's own count applies. A program that is none of ours
does not say when it has connected: its starts count for their first minutes, also where a signal ends a rank alone. So
do those of a job with spare pods, which may never connect.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.core.files import peek_json, whole
from trainyard.core.storage import storage
from trainyard.core.variables import SPARES, read_number
from trainyard.run import fence, owner

MOST_TRIES = 4  # as many starts as run.max_restarts allows by default
LAST_SECONDS = 20.0  # that the end of a pod waits for slow storage
EARLY_SECONDS = 300.0  # from its start, in which a death of a program that is none of ours counts
# How a rank ends that the kernel kills, or that is broken; SIGABRT may be NCCL's, where another pod was lost
DEATHS = tuple(128 + one for one in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE))


def count_and_run(main: Callable[[], int]) -> int:
    """Run the launcher's main function as a counted start; raises ExitError once MOST_TRIES in a row were killed."""
    folder = run_folder(sys.argv)
    if folder is None or not _is_ours(folder):
        return main()
    note, foreign = _note(folder), is_foreign(sys.argv)
    tries = whole(peek_json(note), "tries")
    if tries >= MOST_TRIES:
        forget_killed_starts(folder)  # a person who deletes the job and tries again begins anew
        raise ExitError(_explain_deaths(tries, foreign), Exit.FAILED)
    with contextlib.suppress(OSError, UserError, ExitError):  # storage that cannot be written counts nothing
        note.parent.mkdir(parents=True, exist_ok=True)
        storage.write_json(note, {"tries": tries + 1})
    code: int = Exit.FAILED  # an error is no death
    later = threading.Timer(EARLY_SECONDS, forget_killed_starts, [folder])
    later.daemon = True
    if foreign or read_number(SPARES):
        later.start()
    try:
        code = main()
        return code
    finally:
        later.cancel()
        if not (foreign and code in DEATHS):
            # On a thread: the pod ends also where storage hangs
            last = threading.Thread(target=forget_killed_starts, args=(folder,), daemon=True)
            last.start()
            last.join(LAST_SECONDS)


def note_end() -> None:
    """Note for spare pods that a program that is none of ours has ended with 0 in all processes of this pod.

    Of a trainer of ours summary.json tells it. Never raises.
    """
    folder = run_folder(sys.argv)
    if folder and is_foreign(sys.argv) and read_number(SPARES) and _is_ours(folder):
        with contextlib.suppress(OSError, UserError, ExitError):
            note = _note(folder, "ended")
            note.parent.mkdir(parents=True, exist_ok=True)
            storage.write_json(note, {"job": owner.job_name(), "finished_at": time.time()})


def has_finished(after: float, pods: int) -> bool:
    """Whether the run has finished since then, in seconds since the epoch: by its summary, or in so many pods."""
    folder = run_folder(sys.argv)
    if folder is None:
        return False
    if is_foreign(sys.argv):
        notes = [peek_json(path) for path in (folder / "restarts").glob("ended-*.note")]
        return sum(_since(one, after) for one in notes if one.get("job") == owner.job_name()) >= pods
    return _has_summary(folder, after)


def is_over() -> bool:
    """Whether this job's run has finished, be it before this pod started.

    False for a program that is none of ours, whose notes may be of an earlier job of this name.
    """
    folder = run_folder(sys.argv)
    if folder is None or is_foreign(sys.argv):
        return False
    with contextlib.suppress(OSError):
        newest = owner.find_newest(folder)
        if newest is not None and newest.job == owner.job_name():
            # A run that is trained longer has the summary of its former end until it resumes
            taken = peek_json(fence.folder_of(folder, newest.number) / fence.RECORD).get("time")
            return _has_summary(folder, taken if isinstance(taken, float) else 0.0)
    return False


def _has_summary(folder: Path, after: float) -> bool:
    summary = peek_json(folder / "summary.json")
    return summary.get("status") == "finished" and _since(summary, after)


def _since(note: Mapping[str, Any], after: float) -> bool:
    when = note.get("finished_at")
    return isinstance(when, float) and when >= after


def is_foreign(arguments: Sequence[str]) -> bool:
    """Whether a launcher starts a program that is none of ours."""
    return "--no-python" in arguments


def run_folder(arguments: Sequence[str]) -> Path | None:
    """Return the run directory of a pod's launcher, from its environment or its settings; None outside a cluster."""
    if not owner.job_name():
        return None
    if logs := os.environ.get("TRAINYARD_LOGS"):
        return Path(logs).parent
    if is_foreign(arguments):
        return Path(os.environ["TRAINYARD_RUN_DIR"]) if "TRAINYARD_RUN_DIR" in os.environ else None
    after = arguments[arguments.index("--config") + 1 :] if "--config" in arguments else []
    settings = peek_json(Path(after[0])) if after else {}
    folder = settings["run"].get("dir") if isinstance(settings.get("run"), dict) else None
    return Path(folder) if isinstance(folder, str) else None


def forget_killed_starts(folder: Path) -> None:
    """Forget the killed starts of this pod: it has connected its processes, or ends by itself. Never raises."""
    if owner.job_name():
        with contextlib.suppress(OSError):
            _note(folder).unlink(missing_ok=True)


def forget_on_stop() -> None:
    """Forget the killed starts of this pod, which is stopped from outside. Never raises."""
    if folder := run_folder(sys.argv):
        forget_killed_starts(folder)


def _note(folder: Path, what: str = "launch") -> Path:
    """Where a pod counts its starts, or notes something else; a recreated pod has the same name."""
    return folder / "restarts" / f"{what}-{os.uname().nodename}.note"


def _is_ours(folder: Path) -> bool:
    """Whether the run directory is not another release's, where nothing is written; the ranks say so and end."""
    try:
        owner.refuse_strangers_of(folder)
    except (owner.StrangerError, OSError):
        return False
    return True


def _explain_deaths(tries: int, foreign: bool) -> str:
    when = f"within {EARLY_SECONDS / 60:.0f} minutes" if foreign else "before training began"
    more = "; where it is something else, logs/ has what they printed" if foreign else ""
    return (
        f"{tries} starts of this pod in a row were killed {when}, as the kernel does where a "
        "container's memory limit is too small: raise global.training.resources.limits.memory (trainyard why and "
        f"kubectl get events tell OOMKilled from a node that went away), then upgrade{more}"
    )
