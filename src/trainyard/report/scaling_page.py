"""The page of `trainyard scaling`: rates over processes with the ideal line and the model's, efficiency, step time."""

import html
from typing import Any

from trainyard.report.comparison import Comparison
from trainyard.report.page import card, note, page, table, tiles
from trainyard.report.svg import Line, Share, line_chart, number, stacked_bar

STEP = (("compute", 3), ("data_wait", 2), ("communication", 4), ("other", 9))


def render(comparisons: list[Comparison], summary: dict[str, Any]) -> str:
    """Return the whole page; `summary` is that of one of the runs."""
    known = summary["identity"]
    lead = f"{known['model.name']}, {known['model.num_classes']} classes, {summary['precision']}"
    body = [f"<h1>Scaling</h1><p class='lead'>{html.escape(lead)}</p>"]
    for comparison in comparisons:
        body.append(_tiles(comparison))
        body.append(f'<div class="cards">{_cards(comparison)}</div><p></p>')
    return page("Scaling", "".join(body))


def _tiles(found: Comparison) -> str:
    first, last = found.rows[0], found.rows[-1]
    return tiles([
        (f"{100 * last.efficiency:.1f} %", f"efficiency on {last.run.world} processes, against {first.run.world}"),
        (number(last.run.rate), f"images per second on {last.run.world} processes"),
        (f"{100 * last.run.communication / last.run.step:.1f} %", "of a step waits for communication there"),
        (found.strategy, found.policy),
    ])  # fmt: skip


def _cards(found: Comparison) -> str:
    base, link = found.rows[0].run, found.link
    most = found.curve[-1][0]
    measured = [(float(row.run.world), row.run.rate) for row in found.rows]
    each = base.rate / base.world
    rates = [
        Line("ideal", [(float(base.world), base.rate), (float(most), each * most)], kind=7, dashed=True),
        Line("model", [(float(world), rate) for world, rate in found.curve], kind=4, dashed=True),
        Line("measured", measured, dots=True),
    ]
    shares = [
        Line("model", [(float(world), 100 * rate / world / each) for world, rate in found.curve], kind=4, dashed=True),
        Line("measured", [(float(row.run.world), 100 * row.efficiency) for row in found.rows], dots=True),
    ]
    text = (
        f"Model: 2 (P - 1) a + 2 (P - 1) / P * M / B, with a = {1e6 * link.latency:.4g} us, M = "
        f"{found.gradient_bytes / 1e6:.4g} MB, B = {link.bandwidth / 1e9:.3g} GB/s ({link.origin}); it adds what "
        "backward does not hide to the smallest run's step."
    )
    head = ("#processes", "#img/s", "#each", "#speed-up", "#efficiency", "#model img/s")
    rows = [
        (row.run.world, number(row.run.rate), number(row.run.rate / row.run.world), f"{row.speedup:.2f}x",
         f"{100 * row.efficiency:.1f} %", number(row.predicted))
        for row in found.rows
    ]  # fmt: skip
    start = float(base.world)
    return (
        card("Images per second over processes", line_chart(rates, from_zero=True, from_x=start) + note(text))
        + card("Efficiency over processes", line_chart(shares, unit=" %", from_zero=True, from_x=start))
        + card(f"{found.strategy}: runs", table(head, rows), wide=True)
        + "".join(_step(row.run) for row in found.rows)
    )


def _step(run: Any) -> str:
    parts = [Share(name.replace("_", " "), getattr(run, name), kind) for name, kind in STEP]
    many = "1 process" if run.world == 1 else f"{run.world} processes"
    return card(f"A step on {many}: {1e3 * run.step:.4g} ms", stacked_bar(parts) + note(run.path))
