"""The page of a campaign, in Markdown: each fault with its cost, and the share of useful time that follows."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from hack.campaign.costs import Cost
from hack.campaign.faults import Fault
from trainyard.config.useful_time import time_between_failures, useful_share
from trainyard.training.interval import interval

SIZES = (128, 1024, 16_384)  # GPUs


class Row(NamedTuple):
    """A fault that was made, what it cost, and what was done by hand; empty: nothing."""

    fault: Fault
    place: str
    cost: Cost
    person: str


class Measured(NamedTuple):
    """What a campaign measured beside the rows, in seconds."""

    kept: float
    all: float
    stall: float  # of a checkpoint
    step: float
    difference: float | None  # of any weight from the undisturbed run's; None: not compared


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows as a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def said(seconds: float | None) -> str:
    """Return seconds as text."""
    return "-" if seconds is None else f"{seconds:.0f} s"


def weights(difference: float | None) -> str:
    """Say how the weights compare with those of the undisturbed run."""
    if difference is None:
        return "Its weights were not compared with an undisturbed run's"
    if difference:
        return f"A weight differs from that of the undisturbed run by {difference:.1g} at most"
    return "Its weights are bit-equal to those of an undisturbed run"


def row(one: Row) -> list[str]:
    """Lay out a fault."""
    lasted = f"{one.fault.seconds} s" if one.fault.seconds else "-"
    cost = one.cost
    resumed = said(cost.away) if cost.starts else f"not interrupted; longest step {cost.pause:.1f} s"
    return [
        one.fault.kind, one.place, lasted, said(cost.found), resumed, str(cost.repeated), str(cost.starts),
        one.person or "nothing",
    ]  # fmt: skip


def expected(away: float, stall: float) -> list[list[str]]:
    """Return the share of useful time at each size, where it takes `away` seconds from a failure to the next step."""
    found = []
    for gpus in SIZES:
        failure = time_between_failures(gpus)
        best = interval([stall], 0.0, failure, 0.0)
        share = useful_share(failure, best, stall, away)
        found.append([f"{gpus:,}", f"{failure / 3600:.1f} h", f"{best:.0f} s", f"{100 * share:.2f} %"])
    return found


def render(title: str, rows: Sequence[Row], measured: Measured) -> str:
    """Return the page."""
    away = [one.cost.away for one in rows if one.cost.away is not None]
    lines = [
        f"# {title}", "",
        f"{len(rows)} faults of {len({one.fault.kind for one in rows})} kinds; {len(away)} interrupted the run; "
        f"{sum(bool(one.person) for one in rows)} needed a person. {weights(measured.difference)}.", "",
        table(["fault", "where", "lasted", "found after", "next step after", "steps repeated", "starts", "a person"],
              [row(one) for one in rows]), "",
        f"A step takes {measured.step:.2f} s, a checkpoint holds it up for {1000 * measured.stall:.0f} ms. Steps that "
        f"were kept took {measured.kept:.0f} of {measured.all:.0f} s: {100 * measured.kept / measured.all:.1f} %, "
        f"with a fault every {measured.all / max(len(rows), 1):.0f} s.", "",
    ]  # fmt: skip
    head = ["GPUs", "time between failures", "interval", "ETTR"]
    for name, seconds in [("in the mean", statistics.mean(away)), ("in the worst case", max(away))] if away else []:
        lines += [f"Expected where an interruption takes {seconds:.0f} s, as here {name} "
                  "(src/trainyard/config/useful_time.py has the formula and its sources):", "",
                  table(head, expected(seconds, measured.stall)), ""]  # fmt: skip
    return "\n".join(lines)
