"""What each fault of a campaign cost the run, from the run's own metrics: pure functions. Times are Unix seconds."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Event = dict[str, Any]  # a line of metrics.jsonl


class Cost(NamedTuple):
    """What a fault cost; `found` and `away` are None where it did not interrupt the run."""

    found: float | None  # seconds until a pod of the run ended, or the processes started anew
    away: float | None  # seconds until the next step; of later restarts, too, where steps were made in between
    repeated: int  # steps
    starts: int
    pause: float  # the longest time without a step


def of_kind(events: Sequence[Event], kind: str) -> list[Event]:
    """Return the events of a kind."""
    return [event for event in events if event.get("event") == kind]


def cost(events: Sequence[Event], began: float, now: float, signs: Sequence[float]) -> Cost:
    """Return what a fault cost that began at a time; `signs` are the times at which pods were seen to end."""
    starts = [event for event in of_kind(events, "start") if began < event["started"] <= now]
    steps = sorted(event["time"] for event in of_kind(events, "train"))
    repeated = sum(event["lost_steps"] for event in of_kind(events, "resume") if began < event["time"] <= now)
    before = max((time for time in steps if time <= began), default=began)
    after = [time for time in steps if began < time <= now]
    pause = max((later - earlier for earlier, later in pairwise([before, *after, now])), default=0.0)
    if not starts:
        return Cost(None, None, repeated, 0, pause)
    away, stopped, again = 0.0, began, began
    for start in (event["started"] for event in starts):
        if start < again:
            continue  # it has made no step
        if again > began:
            stopped = max(time for time in after if time <= start)
        again = next((time for time in after if time > start), now)
        away += again - stopped
    found = min([starts[0]["started"], *(time for time in signs if began <= time <= now)])
    return Cost(found - began, away, repeated, len(starts), away)


def goes_on(events: Sequence[Event], since: float, steps: int) -> bool:
    """Whether so many steps were made after a time."""
    return len([event for event in of_kind(events, "train") if event["time"] > since]) >= steps


def step_seconds(events: Sequence[Event]) -> float:
    """Return the median seconds of a step."""
    train = of_kind(events, "train")
    return float(statistics.median(later["time"] - earlier["time"] for earlier, later in pairwise(train)))


def useful(events: Sequence[Event], until: float) -> tuple[float, float, float]:
    """Return the seconds of the steps kept until a time, all seconds since the first start, and those of a step.

    After that time steps are as fast as they can be (paced.py). What a run made again, or was still to make again, is
    not kept.
    """
    made = [event for event in of_kind(events, "train") if event["time"] <= until]
    kept = {event["step"] for event in made if event["step"] <= made[-1]["step"]}
    step = step_seconds(made)
    return len(kept) * step, until - of_kind(events, "start")[0]["started"], step
