"""Draw the dashboard's panels as one SVG file, from a Prometheus's answers, without Grafana.

python -m hack.dashboard.draw --prometheus http://127.0.0.1:9090 --run NAME --minutes 60 dashboard.svg
"""

import argparse
import html
import math
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hack.dashboard.panels import Panel, named, panels
from hack.dashboard.server import Prometheus, Series
from trainyard.report.style import KINDS, STYLE
from trainyard.report.svg import Line, duration, line_chart, number, stacked_area

WIDTH, ROW, GAP = 1260, 34, 10  # of the picture, of a unit of the grid, between panels
WIDEST = 12  # of 24: our charts have one shape, so the strip of alerts is left out
TITLE, KEYS = 30, 22  # heights of a panel's title and of its legend
# unit of Grafana -> what the numbers are multiplied with, and the unit they are shown in
UNITS = {"percentunit": (100.0, " %"), "percent": (1.0, " %"), "s": (1.0, " s"), "bytes": (1 / (1 << 30), " GiB")}
COLOURS = STYLE.partition("*{box-sizing")[0].strip() + "".join(
    f".l{kind}{{stroke:var(--c{kind})}}.f{kind}{{fill:var(--c{kind})}}" for kind in KINDS
)
LOOK = """text{fill:var(--soft);font:11px system-ui,sans-serif}.head{fill:var(--ink);font-weight:600;font-size:13px}
.big{fill:var(--ink);font-size:24px;font-weight:600}.card{fill:var(--card);stroke:var(--grid)}.page{fill:var(--bg)}
.grid{stroke:var(--grid)}.mark{stroke:var(--soft);stroke-dasharray:3 4;opacity:.7}
polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}"""


def finite(points: list[tuple[float, float]], start: float, factor: float) -> list[tuple[float, float]]:
    """Points (minutes since `start`, value times `factor`), without NaN."""
    return [((at - start) / 60, value * factor) for at, value in points if math.isfinite(value)]


def shown(value: float, unit: str) -> str:
    """A number as a panel shows it."""
    factor, suffix = UNITS.get(unit, (1.0, ""))
    return duration(value) if unit == "s" else f"{number(value * factor)}{suffix}"


def legend(names: list[str], width: int, top: int) -> str:
    """Keys of as many lines as fit, each with its colour."""
    parts, x = [], 14
    for index, name in enumerate(names):
        needed = 30 + math.ceil(6.2 * len(name))
        if x + needed > width:
            parts.append(f'<text x="{x}" y="{top + 10}">...</text>')
            break
        parts.append(f'<rect class="f{index % len(KINDS) + 1}" x="{x}" y="{top + 1}" width="10" height="10" rx="3"/>')
        parts.append(f'<text x="{x + 15}" y="{top + 10}">{html.escape(name)}</text>')
        x += needed
    return "".join(parts)


def chart(panel: Panel, found: list[tuple[str, Series]], span: tuple[float, float], marks: list[float]) -> str:
    """A panel's chart as an SVG element: lines over minutes, or shares stacked to 100 %."""
    start, end = span
    factor, unit = UNITS.get(panel.unit, (1.0, ""))
    if panel.stacked:
        times = sorted({at for _, points in found for at, _ in points})
        values = [dict(points) for _, points in found]
        rows = [((at - start) / 60, [one.get(at, 0.0) for one in values]) for at in times]
        drawn = stacked_area(rows, [(name, index % len(KINDS) + 1) for index, (name, _) in enumerate(found)])
    else:
        lines = [
            Line(name, finite(points, start, factor), index % len(KINDS) + 1)
            for index, (name, points) in enumerate(found)
        ]
        within = [mark for mark in marks if 0 < mark <= (end - start) / 60]
        drawn = line_chart(lines, unit, from_zero=panel.unit in ("s", "percentunit"), marks=within)
    match = re.search(r"<svg .*?</svg>", drawn, re.S)
    return match.group(0) if match else '<text x="14" y="60">nothing to show</text>'


def drawn(panel: Panel, found: list[tuple[str, Series]], span: tuple[float, float], marks: list[float]) -> str:
    """A panel with its frame, its title and, of a chart, its keys."""
    x, y, width, height = panel.place
    unit = (WIDTH - GAP) / 24
    wide, high = round(width * unit - GAP), height * ROW - GAP
    body = [f'<rect class="card" width="{wide}" height="{high}" rx="8"/>']
    body.append(f'<text class="head" x="14" y="20">{html.escape(panel.title)}</text>')
    if panel.kind == "stat":
        value = shown(found[0][1][-1][1], panel.unit) if found else "-"
        body.append(f'<text class="big" x="14" y="{high - 40}">{html.escape(value)}</text>')
        body.append(f'<text x="14" y="{high - 16}">{html.escape(found[0][0] if found else "")}</text>')
    else:
        place = f'<svg x="8" y="{TITLE}" width="{wide - 16}" height="{high - TITLE - KEYS}"'
        body.append(chart(panel, found, span, marks).replace("<svg", place, 1))
        body.append(legend([name for name, _ in found], wide, high - KEYS))
    return f'<g transform="translate({GAP + x * unit:.0f} {GAP + y * ROW})">{"".join(body)}</g>'


def asked(server: Prometheus, panel: Panel, span: tuple[float, float], points: int = 240) -> list[tuple[str, Series]]:
    """What a panel shows: names and points of its series."""
    found = []
    step = max(1.0, (span[1] - span[0]) / points)
    for target in panel.targets:
        for labels, series in server.matrix(target.expression, *span, step):
            found.append((named(target.legend, labels), series))
    return found


def picture(server: Prometheus, values: Mapping[str, str], span: tuple[float, float]) -> str:
    """The whole dashboard as an SVG file, for a range of Unix times; vertical lines are starts of the run."""
    starts = server.matrix(f'trainyard_started_timestamp_seconds{{run=~"{values["run"]}"}}', *span)
    marks = sorted({(value - span[0]) / 60 for _, points in starts for _, value in points})[1:]
    every = [(panel, asked(server, panel, span)) for panel in panels(values)]
    every = [(panel, found) for panel, found in every if panel.place[2] <= WIDEST and (found or panel.kind == "stat")]
    high = max(panel.place[1] + panel.place[3] for panel, _ in every) * ROW + GAP
    body = "".join(drawn(panel, found, span, marks) for panel, found in every)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" role="img" '
        f'aria-label="Dashboard of the run {html.escape(values["run"])}"><style>{COLOURS}{LOOK}</style>'
        f'<rect class="page" width="{WIDTH}" height="{high}"/>{body}</svg>\n'
    )


def main() -> int:
    """Draw as the command line says."""
    parser = argparse.ArgumentParser(description="Draw the dashboard from what a Prometheus answers.")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="where Prometheus answers")
    parser.add_argument("--run", required=True, help="name of the run, or a regular expression of several")
    parser.add_argument("--namespace", default=".*", help="its namespace")
    parser.add_argument("--minutes", type=float, default=60, help="how much time to show, up to now")
    parser.add_argument("--window", default="2m", help="over which rates are taken")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    now = time.time()
    values = {"namespace": options.namespace, "run": options.run, "__rate_interval": options.window}
    text = picture(Prometheus(options.prometheus), values, (now - 60 * options.minutes, now))
    options.out.write_text(text)
    print(f"{options.out}: {len(text):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
