"""Counts the starts of a run before anything of them can crash, so that no failure is retried forever.

restarts/JOB.json   restarts of a job since the last new checkpoint, how many starts it had, and the newest checkpoint
                    that any of them saw; each job writes its own, so that an older one which has lost the run directory
                    changes nothing of the newer one's; and which parts of a run its settings have done (note_fit)
last_failure.json   how the last start failed, for the message of the one that gives up
resumed.json        the checkpoint that `resume` names, once the run has begun from it

That a run had a checkpoint is told by these notes, its metrics and its summary: each outlives checkpoints that were
removed, and a mount that shows the run directory without them.

Operators do not bound retries, or by a number that knows nothing of progress (docs/interruptions.md).
"""

import contextlib
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainyard.config.sections.running import RunSettings
from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.core.files import peek_json, whole
from trainyard.core.storage import storage, unreadable
from trainyard.run import checkpoint
from trainyard.run.owner import job_name
from trainyard.run.space import unwritable
from trainyard.telemetry.metrics import read_events

NONE = "none"  # no checkpoint, no job
SEEN, FITS = "seen", "fits"
FAILURE = "last_failure.json"
RESUMED = "resumed.json"
SAVED = ("finished", "stopped")  # how a run ends whose last step is saved


def count(run: RunSettings, fingerprint: str) -> None:
    """Count this start; rank 0 calls it. Raises ExitError where restarts have made no progress, and UserError.

    `fingerprint` is that of all settings: with others, the count begins anew.
    """
    root = Path(run.dir)
    path = _file(root)
    saved = checkpoint.steps(root / "checkpoints")
    now = {
        "job": job_name(),
        "fingerprint": fingerprint,
        "checkpoint": saved[-1].name if saved else NONE,
    }
    old = storage.read_json(path)
    same = all(old.get(key) == value for key, value in now.items())
    restarts = (whole(old, "count") + (not old.get("stopped"))) if same else 0
    if restarts > run.max_restarts:
        raise ExitError(_without_progress(run, restarts - 1, now["checkpoint"]), Exit.FAILED)
    try:
        storage.make_folder(path.parent)
        seen = {SEEN: latest([now["checkpoint"], *_seen(old)]) or NONE}  # also when it is gone
        kept = {FITS: old[FITS]} if FITS in old and old.get("fingerprint") == now["fingerprint"] else {}
        storage.write_json(path, {**now, "count": restarts, "starts": whole(old, "starts") + 1, **seen, **kept})
    except OSError as error:
        raise unwritable(root, error) from error


def note_stop(root: Path) -> None:
    """Note that this start was stopped from outside: it has not used up a restart."""
    path = _file(root)
    storage.write_json(path, {**storage.read_json(path), "stopped": True})


def forget_checkpoints(root: Path) -> None:
    """Forget the checkpoints that earlier starts saw: they were set aside because `resume` says so."""
    own = _file(root)
    for path in storage.list_folder(own.parent):
        if path != own:
            path.unlink(missing_ok=True)
    own.parent.mkdir(parents=True, exist_ok=True)
    storage.write_json(own, {**storage.read_json(own), "checkpoint": NONE, SEEN: NONE})


def note_fit(root: Path, world: int, part: str) -> None:
    """Note that these settings on so many processes have done a part of a run: memory is enough for it. Never raises.

    Rank 0 calls it; all may ask by `fits`.
    """
    path = _file(root)
    with contextlib.suppress(OSError, UserError, ExitError):
        note = storage.read_json(path)
        if note:
            storage.write_json(path, {**note, FITS: {"world": world, "parts": sorted({*_fits(note, world), part})}})


def fits(root: Path, fingerprint: str, world: int) -> set[str]:
    """Return the parts of a run that these settings have done on so many processes, in any start of the job.

    `fingerprint` is that of all settings.
    """
    note = peek_json(_file(root))
    return _fits(note, world) if note.get("fingerprint") == fingerprint else set()


def _fits(note: Mapping[str, Any], world: int) -> set[str]:
    found = note.get(FITS)
    same = isinstance(found, dict) and found.get("world") == world and isinstance(found.get("parts"), list)
    return set(map(str, found["parts"])) if same and isinstance(found, dict) else set()


def latest(names: Iterable[str]) -> str:
    """Of names the one of the newest checkpoint, or nothing."""
    return max(filter(checkpoint.NAME.fullmatch, names), key=lambda name: int(name[5:]), default="")


def lost_checkpoint(root: Path, after: int) -> str:
    """Return the newest checkpoint of a step `after` one that the run is known to have had, or nothing.

    One of step 0 does not count: a run that begins again loses nothing of it. Raises StorageError and UserError.
    """
    metrics = root / "metrics.jsonl"
    try:
        events = read_events(metrics)
    except OSError as error:
        raise unreadable(metrics, error) from error
    summary = storage.read_json(root / "summary.json")
    notes = [storage.read_json(path) for path in storage.list_folder(_file(root).parent)]  # of all starts, this one too
    steps = [_step_saved(summary, "steps"), *(_step_of_event(event) for event in events)]
    newest = latest([*(name for note in notes for name in _seen(note)), *(f"step-{step:08d}" for step in steps)])
    return newest if newest and int(newest[5:]) > max(after, 0) else ""


def begun_from(root: Path, resume: str) -> int | None:
    """Return the step of the checkpoint that `resume` names, once the run has begun from it; None before.

    Raises StorageError and UserError.
    """
    note = storage.read_json(root / RESUMED)
    return whole(note, "step") if note.get("resume") == resume else None


def may_try_again(run: RunSettings, where: str) -> bool:
    """Whether an unknown error that arose `where` is worth another start: a job's first one that ended there.

    A person at a shell tries again without being told to; an error that comes back is a bug. Never raises.
    """
    now, last = peek_json(_file(Path(run.dir))), peek_json(Path(run.dir) / FAILURE)
    again = last.get("where") == where and last.get("job") == job_name() and last.get("start") != now.get("starts")
    return bool(job_name() and now) and whole(now, "count") < run.max_restarts and not again


def remember(root: Path, message: str, code: int, where: str = "") -> None:
    """Record how this start failed; the loss of a peer does not hide what a peer recorded. Never raises."""
    path, start = root / FAILURE, peek_json(_file(root)).get("starts")
    last = peek_json(path)
    if code == Exit.HANG and (last.get("job"), last.get("start")) == (job_name(), start):
        return
    note = {"code": int(code), "message": message, "where": where, "job": job_name(), "start": start}
    try:
        storage.write_json(path, {**note, "time": time.time()})
    except (OSError, UserError, ExitError):
        return  # the message itself is what counts


def _step_of_event(event: Mapping[str, Any]) -> int:
    """Return the step of the checkpoint that an event tells of; 0 for none."""
    return whole(event, "step") if event["event"] in ("checkpoint", "resume") else _step_saved(event, "step")


def _step_saved(note: Mapping[str, Any], key: str) -> int:
    """Return the step at which a run has ended and was saved; 0 for none."""
    return whole(note, key) if note.get("status") in SAVED else 0


def _seen(note: Mapping[str, Any]) -> list[str]:
    """Return the checkpoints that a note names."""
    return [str(note.get(key, NONE)) for key in ("checkpoint", SEEN)]


def _file(root: Path) -> Path:
    return root / "restarts" / f"{urllib.parse.quote(job_name(), safe='') or NONE}.json"


def _without_progress(run: RunSettings, restarts: int, newest: str) -> str:
    root = Path(run.dir)
    last: dict[str, Any] = peek_json(root / FAILURE)
    ended = f"The last start ended with {last.get('code')}: {last.get('message')}. "
    why = ended if last.get("job") == job_name() else ""
    return (
        f"{restarts} restarts of {run.dir} without a new checkpoint (the last one is {newest}): retries make no "
        f"progress. {why}See logs/ for why it ended, then remove {_file(root)} to try again"
    )
