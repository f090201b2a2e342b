"""What trainyard why finds, and how it reads objects of the API."""

import re
from datetime import datetime
from typing import NamedTuple

# Controls but line breaks and tabs, and what reverses the direction of text
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text with characters that could steer a terminal as escapes: pods' logs and messages are foreign."""
    return STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Finding(NamedTuple):
    """What a person should know of one object: its state, the cause and the remedy (empty when all is well)."""

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


def events_of(thing: dict, events: list[dict]) -> list[dict]:
    """Return an object's warnings, newest last."""
    mine = [
        e for e in events if e["involvedObject"].get("uid") == thing["metadata"]["uid"] and e.get("type") == "Warning"
    ]
    return sorted(mine, key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or "")


def conditions(thing: dict) -> dict[str, dict]:
    """Return the conditions that hold, by type."""
    return {c["type"]: c for c in thing.get("status", {}).get("conditions") or [] if c.get("status") == "True"}
