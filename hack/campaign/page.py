"""The page of a campaign, in Markdown: each fault with its cost, and the share of useful time that follows.

`python -m hack.campaign.page [CAMPAIGN...]` prints campaigns side by side: those in build/campaign, by name.
"""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hack.campaign.costs import Cost
from hack.campaign.faults import Fault
from trainyard.config.useful_time import time_between_failures, useful_share
from trainyard.training.interval import interval

SIZES = (128, 1024, 16_384)  # GPUs
MADE = Path(__file__).resolve().parents[2] / "build/campaign"


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
    every: float = 0.0  # between checkpoints; 0: what the run chooses


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


def expected(away: float, measured: Measured) -> list[list[str]]:
    """Return the share of useful time at each size, where it takes `away` seconds from a failure to the next step."""
    found = []
    for gpus in SIZES:
        failure = time_between_failures(gpus)
        best = measured.every or interval([measured.stall], 0.0, failure, 0.0)
        share = useful_share(failure, best, measured.stall, away)
        found.append([f"{gpus:,}", f"{failure / 3600:.1f} h", f"{best:.0f} s", f"{100 * share:.2f} %"])
    return found


def times_away(rows: Sequence[Row]) -> list[float]:
    """Return the seconds until the next step, of the faults that interrupted the run."""
    return [one.cost.away for one in rows if one.cost.away is not None]


def render(title: str, rows: Sequence[Row], measured: Measured) -> str:
    """Return the page."""
    away = times_away(rows)
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
                  table(head, expected(seconds, measured)), ""]  # fmt: skip
    return "\n".join(lines)


def cell(rows: Sequence[Row]) -> str:
    """Say in a few words what a kind of fault cost a campaign, each time that it was made."""
    found = []
    for one in rows:
        cost = one.cost
        text = f"{said(cost.away)}, {cost.repeated} steps" if cost.starts else f"went on; {cost.pause:.0f} s"
        found.append(text + (f"; a person: {one.person}" if one.person else ""))
    return "<br>".join(found) or "-"


def side_by_side(campaigns: Mapping[str, tuple[Sequence[Row], Measured | None]]) -> str:
    """Lay out campaigns as the columns of a table, with a row for each kind of fault, and what they come to below."""
    kinds = dict.fromkeys(one.fault.kind for rows, _ in campaigns.values() for one in rows)
    lines = [
        [kind, *(cell([one for one in rows if one.fault.kind == kind]) for rows, _ in campaigns.values())]
        for kind in kinds
    ]
    sums: dict[str, list[str]] = {}
    for rows, measured in campaigns.values():
        away = times_away(rows)
        mean = statistics.mean(away) if away else 0.0
        shares = [line[-1] for line in expected(mean, measured)] if measured else ["-"] * len(SIZES)
        kept = f"{100 * measured.kept / measured.all:.1f} %" if measured else "-"
        worst = f"{said(statistics.median(away))}, {said(max(away))}" if away else "-"
        for head, text in {
            "faults; they interrupted the run; needed a person":
                f"{len(rows)}; {len(away)}; {sum(bool(one.person) for one in rows)}",
            "next step after: median, worst": worst,
            "steps repeated": str(sum(one.cost.repeated for one in rows)),
            "useful time here": kept,
            **{f"expected with {gpus:,} GPUs": share for gpus, share in zip(SIZES, shares, strict=True)},
        }.items():  # fmt: skip
            sums.setdefault(head, []).append(text)
    return table(["fault", *campaigns], [*lines, *([f"**{head}**", *texts] for head, texts in sums.items())])


def read(folder: Path) -> tuple[list[Row], Measured | None]:
    """Read what a campaign has left in its folder; raises OSError and ValueError."""
    rows = [
        Row(Fault(*fault), place, Cost(*cost), person)
        for fault, place, cost, person in json.loads((folder / "rows.json").read_text())
    ]
    file = folder / "measured.json"
    return rows, Measured(**json.loads(file.read_text())) if file.exists() else None


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(file.parent.name for file in MADE.glob("*/rows.json"))
    print(side_by_side({name: read(MADE / name) for name in names}))
