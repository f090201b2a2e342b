"""The result of a check of a cluster, and functions by which checks read times and amounts of the API."""

from collections.abc import Iterable
from decimal import Decimal
from typing import NamedTuple

from trainyard.cluster import connection

parse_quantity = connection.import_part("kubernetes.utils.quantity").parse_quantity
ERROR, WARNING, NOTE = "error", "warning", "note"  # stops a run; may stop or slow it; worth knowing
LEVELS = (ERROR, WARNING, NOTE)


class Diagnosis(NamedTuple):
    """One thing that is wrong: its level, the object, what was seen, and the remedy."""

    level: str
    object: str
    seen: str
    remedy: str


class Check(NamedTuple):
    """The result of one check: what is sound, what is wrong, and what could not be proven, with the reason."""

    title: str
    sound: str = ""
    wrong: tuple[Diagnosis, ...] = ()
    unproven: tuple[str, ...] = ()


def check(
    title: str, sound: Iterable[str] = (), wrong: Iterable[Diagnosis] = (), unproven: Iterable[str] = ()
) -> Check:
    """Make a check of its parts; what is found twice is kept once, errors first."""
    ordered = sorted(dict.fromkeys(wrong), key=lambda one: LEVELS.index(one.level))
    return Check(title, "; ".join(filter(None, sound)), tuple(ordered), tuple(dict.fromkeys(unproven)))


def forbidden(what: str, why: str) -> Diagnosis:
    """Say that this user may not look at something."""
    return Diagnosis(NOTE, what, f"could not look at {what} ({why})", f"ask for a role that may list {what}")


def amount(text: object) -> Decimal:
    """Return a quantity of the API, such as 16Gi or 500m, as a number; raises ValueError for other text."""
    found: Decimal = parse_quantity(text)
    return found


def show(number: Decimal, like: str = "") -> str:
    """Return a number as people write it: bytes in Gi for memory and storage, others as they are."""
    if "memory" in like or "storage" in like or like.startswith("hugepages"):
        for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
            if number >= size:
                return f"{float(number / size):.4g}{unit}"
    return f"{float(number):.6g}"


def several(names: Iterable[str], most: int = 4) -> str:
    """Return names with commas between, the first of many alone."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def find_by_name(things: Iterable[dict], name: str) -> dict | None:
    """Return the object of a name."""
    return next((thing for thing in things if thing["metadata"]["name"] == name), None)
