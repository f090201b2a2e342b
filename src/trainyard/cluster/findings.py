"""Findings of `trainyard why`, and functions that read objects of the API."""

from datetime import datetime
from typing import NamedTuple


class Finding(NamedTuple):
    """A finding about one object: its state, the cause and the remedy (empty when all is well)."""

    object: str
    state: str
    cause: str = ""
    remedy: str = ""


def since(stamp: str, now: datetime) -> float:
    """Return the seconds since a time of the API."""
    return (now - datetime.fromisoformat(stamp.replace("Z", "+00:00"))).total_seconds()


def age(thing: dict, now: datetime) -> float:
    """Return the seconds since an object was made."""
    return since(thing["metadata"]["creationTimestamp"], now)


def name(thing: dict) -> str:
    """Return kind/name in lower case, as kubectl prints it."""
    return f"{thing['kind'].lower()}/{thing['metadata']['name']}"


def in_namespace(thing: dict) -> str:
    """Return the option of kubectl that names an object's namespace."""
    return f" -n {thing['metadata']['namespace']}" if thing["metadata"].get("namespace") else ""


def group_events(events: list[dict]) -> dict[str, list[dict]]:
    """Return events by the uid of their object: a large job has thousands of each."""
    found: dict[str, list[dict]] = {}
    for one in events:
        found.setdefault(one["involvedObject"].get("uid", ""), []).append(one)
    return found


def when(event: dict) -> str:
    """Return when an event happened last; the scheduler's repeat as a series, which has a time of its own."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return series or event.get("lastTimestamp") or event.get("eventTime") or ""


def events_of(thing: dict, events: list[dict]) -> list[dict]:
    """Return an object's warnings, newest last."""
    mine = [
        e for e in events if e["involvedObject"].get("uid") == thing["metadata"]["uid"] and e.get("type") == "Warning"
    ]
    return sorted(mine, key=when)


def conditions(thing: dict) -> dict[str, dict]:
    """Return the conditions that hold, by type."""
    return {c["type"]: c for c in thing.get("status", {}).get("conditions") or [] if c.get("status") == "True"}


def readiness(thing: dict) -> dict:
    """Return the condition Ready, also one that does not hold; empty where there is none."""
    held = thing.get("status", {}).get("conditions") or []
    found: dict = next((one for one in held if one["type"] == "Ready"), {})
    return found


def say_times(total: int) -> str:
    """Say behind a state how often pods were created anew; nothing where they were not."""
    return f", pods recreated {'once' if total == 1 else f'{total} times'}" if total else ""
