"""Charts as inline SVG, coloured by the page's style sheet: classes l1.. for lines, f1.. for areas, k1.. for keys.

They are drawn for a phone's width and grow with the page; the style sheet makes their text smaller on wide screens.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Points = list[tuple[float, float]]
Place = Callable[[float, float], tuple[float, float]]

WIDTH, HEIGHT = 400, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 10, 26
MOST_POINTS = 400


@dataclass(frozen=True)
class Line:
    """One line of a chart; `kind` picks its colour, `dots` marks each point."""

    name: str
    points: Points
    kind: int = 1
    dots: bool = False
    faint: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Share:
    """A named part of a whole; `kind` picks its colour."""

    name: str
    value: float
    kind: int


def line_chart(
    lines: list[Line], unit: str = "", from_zero: bool = False, marks: Sequence[float] = (), from_x: float = 0.0
) -> str:
    """Return a chart of lines over steps (or another x that begins at `from_x`); `marks` are vertical lines."""
    points = [point for line in lines for point in line.points if math.isfinite(point[1])]
    if not points:
        return '<p class="none">nothing recorded yet</p>'
    x_high = max([from_x + 1.0, *(x for x, _ in points)])
    low, high = min(y for _, y in points), max(y for _, y in points)
    y_ticks = ticks(0.0 if from_zero else low, high if high > low else low + (abs(low) or 1.0), 5)
    place = _placing((from_x, x_high), (y_ticks[0], y_ticks[-1]))
    parts = [_grid(place, [x for x in ticks(from_x, x_high, 5) if from_x <= x <= x_high], y_ticks, unit)]
    for mark in marks:
        x, _ = place(mark, y_ticks[0])
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    parts += [_line(place, line) for line in lines if line.points]
    names = ", ".join(line.name for line in lines)
    keys = [_key(line.name, line.kind) for line in lines if not line.faint]
    return _svg(parts, names) + f'<div class="legend">{"".join(keys)}</div>'


def stacked_bar(shares: list[Share]) -> str:
    """Draw a horizontal bar that divides seconds into named parts, and a legend with their seconds and shares."""
    whole = sum(share.value for share in shares) or 1.0
    x, boxes, keys = 0.0, [], []
    for share in shares:
        width = WIDTH * share.value / whole
        tip = f"{share.name} {duration(share.value)}, {100 * share.value / whole:.1f} %"
        boxes.append(
            f'<rect class="f{share.kind}" x="{x:.2f}" width="{width:.2f}" height="34"><title>{html.escape(tip)}</title>'
            "</rect>"
        )
        if share.value > 0:
            keys.append(_key(tip, share.kind))
        x += width
    bar = (
        f'<svg class="bar" viewBox="0 0 {WIDTH} 34" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(", ".join(share.name for share in shares))}">{"".join(boxes)}</svg>'
    )
    return f'{bar}<div class="legend">{"".join(keys)}</div>'


def stacked_area(rows: list[tuple[float, list[float]]], names: list[tuple[str, int]]) -> str:
    """Shares of each row's sum over x, stacked: rows of (x, one value per name); names with their colours."""
    rows = [(x, values) for x, values in rows if sum(values) > 0]
    if not rows:
        return '<p class="none">nothing recorded yet</p>'
    place = _placing((0.0, max(1.0, rows[-1][0])), (0.0, 100.0))
    parts, below = [], [0.0] * len(rows)
    for index, (_, kind) in enumerate(names):
        above = [low + 100 * values[index] / sum(values) for low, (_, values) in zip(below, rows, strict=True)]
        edge = [place(x, y) for (x, _), y in zip(rows, above, strict=True)]
        back = [place(x, y) for (x, _), y in zip(rows, below, strict=True)]
        if len(rows) == 1:  # one point fills the width
            edge, back = (
                [(LEFT, edge[0][1]), (WIDTH - RIGHT, edge[0][1])],
                [(LEFT, back[0][1]), (WIDTH - RIGHT, back[0][1])],
            )
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*edge, *reversed(back)])
        parts.append(f'<polygon class="f{kind}" points="{path}"/>')
        below = above
    parts.append(_grid(place, [x for x in ticks(0.0, rows[-1][0], 5) if x <= rows[-1][0]], [0, 25, 50, 75, 100], " %"))
    keys = "".join(_key(name, kind) for name, kind in names)
    return _svg(parts, ", ".join(name for name, _ in names)) + f'<div class="legend">{keys}</div>'


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers that cover a range."""
    span = (high - low) or abs(high) or 1.0
    magnitude = 10 ** math.floor(math.log10(span / about))
    size = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if span / (magnitude * factor) <= about)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [index * size for index in range(first, max(last, first + 1) + 1)]


def thin_out(points: Points, most: int = MOST_POINTS) -> Points:
    """Average neighbouring points until there are few enough to draw."""
    group = -(-len(points) // most)
    if group <= 1:
        return points
    chunks = [points[start : start + group] for start in range(0, len(points), group)]
    return [(chunk[-1][0], sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]


def smooth(points: Points, share: float = 0.05) -> Points:
    """Return a running mean over a share of the points; the window grows with the first ones."""
    window = max(1, round(len(points) * share))
    result, total = [], 0.0
    for index, (x, y) in enumerate(points):
        total += y - (points[index - window][1] if index >= window else 0.0)
        result.append((x, total / min(index + 1, window)))
    return result


def number(value: float) -> str:
    """Return a number as short as it can be read."""
    if value and abs(value) < 1e-3:
        return f"{value:.2g}".replace("e-0", "e-")
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:,.4g}" if abs(value) < 1e3 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    if hours < 1:
        return f"{int(minutes)} min {seconds % 60:.0f} s"
    return f"{int(hours)} h {minutes % 60:.0f} min" if hours < 48 else f"{hours / 24:.1f} days"


def _placing(x_range: tuple[float, float], y_range: tuple[float, float]) -> Place:
    """Where a point of the data lies in the drawing."""

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_range[0]) / (x_range[1] - x_range[0])
        up = (y - y_range[0]) / (y_range[1] - y_range[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    return place


def _svg(parts: list[str], label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'


def _key(text: str, kind: int) -> str:
    return f'<span class="key k{kind}">{html.escape(text)}</span>'


def _grid(place: Place, x_ticks: Sequence[float], y_ticks: Sequence[float], unit: str) -> str:
    parts = []
    for value in y_ticks:
        _, y = place(0, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}{unit}</text>')
    for value in x_ticks:
        x, _ = place(value, y_ticks[0])
        anchor = "end" if x > WIDTH - RIGHT - 16 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{number(value)}</text>')
    return "".join(parts)


def _line(place: Place, line: Line) -> str:
    finite = [(x, y) for x, y in line.points if math.isfinite(y)]
    places = [place(x, y) for x, y in finite]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    kind = f"l{line.kind}{' faint' if line.faint else ''}{' dashed' if line.dashed else ''}"
    drawn = f'<polyline class="{kind}" points="{path}"/>'
    dots = "".join(
        f'<circle class="f{line.kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"><title>{number(at)}: {number(value)}</title>'
        "</circle>"
        for (x, y), (at, value) in zip(places, finite, strict=True)
    )
    return drawn + (dots if line.dots or len(finite) == 1 else "")
