"""metrics.jsonl: one JSON object a line, in order of time; each step appears once, also after a resume."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard.core.files import MISSING, fits, parse_json
from trainyard.core.storage import Appender, storage

Event = dict[str, Any]
NUMBER, COUNT, TEXT, TABLE = (int, float), (int,), (str,), (dict,)
TABLES = ("seconds", "seconds_total", "phases", "joules")  # of numbers
# What the fields of a line hold: a line of which a byte has changed is passed over by every reader
KINDS = {
    **dict.fromkeys(("event", "status"), TEXT),
    **dict.fromkeys(("step", "epoch", "samples", "world_size", "classes", "image_size"), COUNT),
    **dict.fromkeys(
        ("time", "started", "idle", "loss", "lr", "images_per_second", "top1", "top5", "batch_norm_start"), NUMBER
    ),
    **dict.fromkeys(TABLES, TABLE),
    "slowest": TABLE,
    "slow_network": NUMBER,
}
SLOWEST = {"rank": COUNT, "cause": TEXT, "behind": NUMBER}
# What pages show of a line, beside its step
COMPLETE = {"train": ("loss", "lr", "images_per_second"), "validate": ("epoch", "loss", "top1", "top5"), "start": ()}
# What W&B, TensorBoard and MLflow show, as `train/loss` and so on
SHOWN = ("loss", "lr", "images_per_second", "top1", "top5", "epoch", "samples")

# A share of BatchNorm's averages that is still their first value, above which a validation measures too little
COLD = 0.01
FEW = 10  # classes, of which five guesses are so many that people are not told how often they hold the right one


class MetricsFile:
    """Appends events to a file; each line is there as soon as it is written."""

    def __init__(self, path: Path, ours: Callable[[], bool]) -> None:
        """`ours`: whether this run still has its directory (storage.Appender)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = Appender(path, ours)

    def write(self, event: Event) -> None:
        """Append an event; raises OSError and StorageError."""
        self._file.write(json.dumps(event) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_events(path: Path) -> list[Event]:
    """Return the events of a file, without lines that are cut or damaged; raises OSError and StorageError."""
    return [event for event in read_lines(path) if is_event(event)]


def read_lines(path: Path) -> list[Event]:
    """Return the same for a file whose lines may be no events, but belong to a step."""
    try:
        data = storage.read_bytes(path)
    except MISSING:
        return []
    return [found for line in data.splitlines() if (found := parse_line(line)) is not None]


def parse_line(line: bytes) -> Event | None:
    """Return what a line says; None if it is not whole, or says what no such line can."""
    try:
        found = parse_json(line.decode())
    except ValueError:
        return None
    if not isinstance(found, dict) or not fits(found, KINDS) or found.get("step", 0) < 0:
        return None
    if not math.isfinite(found.get("time", 0)):
        return None
    tables = [found[key] for key in TABLES if key in found]
    numbers = all(fits(table, dict.fromkeys(table, NUMBER)) for table in tables)
    slowest = found.get("slowest", {})
    whole = not slowest or (SLOWEST.keys() <= slowest.keys() and fits(slowest, SLOWEST))
    return found if numbers and whole else None


def is_event(line: Event) -> bool:
    """Whether a line is that of an event."""
    return "event" in line and "step" in line


def of_kind(events: list[Event], kind: str) -> list[Event]:
    """Return the events of a kind that have all that pages show."""
    return [event for event in events if event["event"] == kind and all(key in event for key in COMPLETE[kind])]


def numbers(event: Event, processes: int) -> dict[str, float]:
    """Return the numbers of an event under its kind; none where it has nothing to show.

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
    if not storage.perform(path, path.exists):
        return 0
    events = read_lines(path)
    kept = [event for event in events if _before(event, step, validated)]
    storage.write_file(path, "".join(json.dumps(event) + "\n" for event in kept).encode(), via=staging)
    return max((int(event.get("step", 0)) for event in events), default=0) - step if len(kept) < len(events) else 0


def _before(event: Event, step: int, validated: int) -> bool:
    if event.get("event") == "start":  # what the seconds of a whole run are reckoned from
        return True
    if event.get("event") == "validate":
        return int(event.get("step", 0)) <= step and int(event.get("epoch", 0)) <= validated
    return int(event.get("step", 0)) <= step
