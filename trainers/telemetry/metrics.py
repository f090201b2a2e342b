"""metrics.jsonl: one JSON object a line, in order of time; each step appears once, also after a resume."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainers.files import MISSING, Appender, retried, write_atomically

Event = dict[str, Any]
# What W&B, TensorBoard and MLflow show, as `train/loss` and so on
SHOWN = ("loss", "lr", "images_per_second", "top1", "top5", "epoch", "samples")


class MetricsFile:
    """Appends events to a file; each line is there as soon as it is written."""

    def __init__(self, path: Path, ours: Callable[[], bool]) -> None:
        """`ours`: whether this run still has its directory (files.Appender)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = Appender(path, ours)

    def write(self, event: Event) -> None:
        """Append an event; raises OSError and StorageError."""
        self._file.write(json.dumps(event) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_events(path: Path) -> list[Event]:
    """The events of a file, without a line that a crash has cut; raises OSError and StorageError."""
    try:
        text = retried(path.read_text, path)
    except MISSING:
        return []
    events = []
    for line in text.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def numbers(event: Event, processes: int) -> dict[str, float]:
    """The numbers of an event under its kind; none where it has nothing to show.

    The rate is also there per process, by which world sizes are compared.
    """
    kind = event["event"]
    if kind not in ("train", "validate"):
        return {}
    shown = {f"{kind}/{key}": float(event[key]) for key in SHOWN if key in event}
    if "images_per_second" in event:
        shown[f"{kind}/images_per_second_per_process"] = event["images_per_second"] / processes
    return shown


def rewind(path: Path, step: int, validated: int, staging: Path | None = None) -> int:
    """Drop the events after `step`, which a run that resumes there will repeat; returns the number of steps dropped.

    The file is replaced, by way of `staging`: what an older process still appends goes to a file without a name.
    """
    if not retried(path.exists, path):
        return 0
    events = read_events(path)
    kept = [event for event in events if _before(event, step, validated)]
    write_atomically(path, "".join(json.dumps(event) + "\n" for event in kept).encode(), via=staging)
    return max((int(event.get("step", 0)) for event in events), default=0) - step if len(kept) < len(events) else 0


def _before(event: Event, step: int, validated: int) -> bool:
    if event.get("event") == "start":  # what the seconds of a whole run are reckoned from
        return True
    if event.get("event") == "validate":
        return int(event.get("step", 0)) <= step and int(event.get("epoch", 0)) <= validated
    return int(event.get("step", 0)) <= step
