"""What earlier starts of a run left to account for: work that is done again, and time in which nobody worked.

The record is metrics.jsonl itself: each start writes a `start` line, which no restart drops, and an orderly end an
`end` line with its seconds by cause. From the first start to this one, every second is then either in the seconds that
the checkpoint (or the `end` line) brought along, or was lost, or was waited for.
"""

from dataclasses import dataclass
from pathlib import Path

from trainers.telemetry.clock import Clock
from trainers.telemetry.metrics import Event, read_events
from trainers.telemetry.watchdog import last_alive


@dataclass(frozen=True)
class Past:
    """Earlier starts: how many, and seconds lost, waited, and not counted since the run was finished meanwhile."""

    restarts: int = 0
    lost: float = 0.0
    waited: float = 0.0
    idle: float = 0.0


def settle(clock: Clock, directory: Path, step: int) -> Past:
    """Add to the clock what the starts before this one, which goes on from `step`, have cost; call before rewinding."""
    events = read_events(directory / "metrics.jsonl")
    starts = [event for event in events if event["event"] == "start"]
    if not starts:
        return Past()
    end = _orderly_end(events, step)
    if end:
        earlier = dict(clock.before)
        clock.add({cause: seconds - earlier.get(cause, 0.0) for cause, seconds in end["seconds_total"].items()})
    idle = float(starts[-1]["idle"])
    life = clock.started - float(starts[0]["started"]) - idle  # from the first start to this one
    rest = max(0.0, life - sum(clock.before.values()))
    if end and end["status"] == "finished":  # a longer run was asked for; nobody waited for it
        return Past(len(starts), idle=idle + rest)
    signs = [float(event["time"]) for event in events if "time" in event]
    alive = max([*signs, last_alive(directory, before=clock.started)])
    waited = rest if end else min(rest, max(0.0, clock.started - alive))
    clock.spend({"lost": rest - waited, "restart_wait": waited})
    return Past(len(starts), rest - waited, waited, idle)


def _orderly_end(events: list[Event], step: int) -> Event | None:
    """The line of the last start's end, if it ended in order and at this step."""
    last = events[-1]
    orderly = last["event"] == "end" and last["status"] in ("finished", "stopped") and last["step"] == step
    return last if orderly else None
