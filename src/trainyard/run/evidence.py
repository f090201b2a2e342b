"""What tells that a run had a checkpoint where none is there any more: notes of its starts, its metrics, its summary.

Each of them outlives checkpoints that were removed, or a mount that shows the run directory without them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.core.files import whole
from trainyard.core.storage import storage, unreadable
from trainyard.run import starts
from trainyard.telemetry.metrics import read_events

SAVED = ("finished", "stopped")  # how a run ends whose last step is saved


def lost_checkpoint(path: Path) -> str:
    """The newest checkpoint that the run directory is known to have had, or nothing; raises StorageError and UserError.

    One of step 0 does not count: a run that begins again loses nothing of it.
    """
    steps = [*_of_metrics(path / "metrics.jsonl"), _step_saved(storage.read_json(path / "summary.json"), "steps")]
    names = [*starts.saw_checkpoints(path), *(f"step-{step:08d}" for step in steps)]
    newest = starts.latest(names)
    return newest if newest and int(newest[5:]) else ""


def _of_metrics(path: Path) -> list[int]:
    try:
        events = read_events(path)
    except OSError as error:
        raise unreadable(path, error) from error
    return [
        whole(event, "step") if event["event"] in ("checkpoint", "resume") else _step_saved(event, "step")
        for event in events
    ]


def _step_saved(note: Mapping[str, Any], key: str) -> int:
    """The step at which a run has ended and was saved; 0 for none."""
    return whole(note, key) if note.get("status") in SAVED else 0
