"""Accounts for earlier starts of a run: work that must be repeated, and time in which no process was alive.

The record is metrics.jsonl itself: each start writes a `start` line, which no restart drops, and an orderly end writes
an `end` line with its seconds by cause. Every second from the first start to this one was therefore counted by the
checkpoint (or the `end` line), or was lost, or passed while no process was alive.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.core.exits import LAUNCHER
from trainyard.core.files import fits, peek_json
from trainyard.telemetry.beats import last_alive
from trainyard.telemetry.clock import Clock, process_start
from trainyard.telemetry.metrics import NUMBER, Event, read_events


@dataclass(frozen=True)
class Past:
    """Earlier starts: how many, of them `interruptions` without an orderly end; joules.

    Seconds of them: lost, waited, and not counted since the run was finished meanwhile.

    Of the seconds lost since the last start `noticing` passed until a hang was noticed; of those waited, `launching`
    since the launcher of this process was started.
    """

    restarts: int = 0
    lost: float = 0.0
    waited: float = 0.0
    idle: float = 0.0
    joules: Mapping[str, float] = field(default_factory=dict)
    noticing: float = 0.0
    launching: float = 0.0
    interruptions: int = 0

    def phases(self) -> dict[str, float]:
        """Return the seconds of the last interruption before this process was started, by what passed."""
        return {
            "repeated": self.lost - self.noticing,
            "noticing": self.noticing,
            "away": self.waited - self.launching,
            "launching": self.launching,
        }


def settle(clock: Clock, directory: Path, step: int) -> Past:
    """Add the seconds of earlier starts to the clock of this one, which resumes from `step`; call before rewinding."""
    events = read_events(directory / "metrics.jsonl")
    starts = [event for event in events if event["event"] == "start" and {"started", "idle"} <= event.keys()]
    if not starts:
        return Past()
    end = _orderly_end(events, step)
    if end:
        earlier = dict(clock.before)
        clock.add({cause: seconds - earlier.get(cause, 0.0) for cause, seconds in end["seconds_total"].items()})
    joules: Mapping[str, float] = next((event["joules"] for event in reversed(events) if "joules" in event), {})
    idle = float(starts[-1]["idle"])
    life = clock.started - float(starts[0]["started"]) - idle  # from the first start to this one
    rest = max(0.0, life - sum(clock.before.values()))
    if end and end["status"] == "finished":  # a longer run was asked for; nobody waited for it
        return Past(len(starts), idle=idle + rest, joules=joules, interruptions=_interruptions(events))
    signs = [float(event["time"]) for event in events if "time" in event]
    alive = max([*signs, last_alive(directory, before=clock.started)])
    waited = rest if end else min(rest, max(0.0, clock.started - alive))
    clock.spend({"lost": rest - waited, "restart_wait": waited})
    lost = rest - waited
    noticing = min(lost, _seconds_of_hang(directory, float(starts[-1]["started"]), clock.started))
    launching = min(waited, _seconds_of_launcher())
    return Past(len(starts), lost, waited, idle, joules, noticing, launching, _interruptions(events))


def _seconds_of_hang(directory: Path, after: float, before: float) -> float:
    """Return the seconds until a hang between two moments was noticed; 0 if there was none."""
    note = peek_json(directory / "hang.json")
    known = fits(note, dict.fromkeys(("time", "waited_seconds"), NUMBER)) and {"time", "waited_seconds"} <= note.keys()
    return max(0.0, float(note["waited_seconds"])) if known and after < note["time"] < before else 0.0


def _seconds_of_launcher() -> float:
    """Return how long before this process its launcher was started; 0 where there is none that is known."""
    try:
        return max(0.0, process_start() - process_start(str(int(os.environ[LAUNCHER]))))
    except (KeyError, ValueError, OSError, IndexError):
        return 0.0


def _interruptions(events: list[Event]) -> int:
    """Return how many starts had no orderly end that the record still has."""
    kinds = [event["event"] for event in events if event["event"] == "start" or _is_orderly(event)]
    return sum(kind == "start" and after != "end" for kind, after in zip(kinds, [*kinds[1:], ""], strict=True))


def _is_orderly(event: Event) -> bool:
    return event["event"] == "end" and event.get("status") in ("finished", "stopped")


def _orderly_end(events: list[Event], step: int) -> Event | None:
    """Return the `end` line of the last start, if it ended at this step without a crash."""
    last = events[-1]
    return last if _is_orderly(last) and last["step"] == step and "seconds_total" in last else None
