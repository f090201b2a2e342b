"""Line charts and bars as inline SVG, coloured by the page's style sheet."""

import html
import math
from collections.abc import Callable
from dataclasses import dataclass

Points = list[tuple[float, float]]
Place = Callable[[float, float], tuple[float, float]]

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 30
MOST_POINTS = 600


@dataclass(frozen=True)
class Line:
    """One line of a chart; `kind` picks its colour, `dots` marks each point."""

    name: str
    points: Points
    kind: int = 1
    dots: bool = False
    faint: bool = False


def line_chart(lines: list[Line], unit: str = "", from_zero: bool = False) -> str:
    """A chart of lines over steps."""
    points = [point for line in lines for point in line.points if math.isfinite(point[1])]
    if not points:
        return '<p class="none">nothing recorded</p>'
    x_ticks = ticks(0.0, max(x for x, _ in points), 6)
    low, high = min(y for _, y in points), max(y for _, y in points)
    y_ticks = ticks(0.0 if from_zero else low, high if high > low else low + 1, 5)
    x_range = (0.0, max([1.0, *(x for x, _ in points)]))
    y_range = (y_ticks[0], y_ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_range[0]) / (x_range[1] - x_range[0])
        up = (y - y_range[0]) / (y_range[1] - y_range[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [_grid(place, x_ticks, y_ticks, unit)]
    parts += [_line(place, line) for line in lines if line.points]
    names = " · ".join(line.name for line in lines)
    legend = "".join(
        f'<span class="key k{line.kind}">{html.escape(line.name)}</span>' for line in lines if not line.faint
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(names)}">{"".join(parts)}</svg>'
        f'<div class="legend">{legend}</div>'
    )


def stacked_bar(shares: list[tuple[str, float]]) -> str:
    """A horizontal bar that divides a whole into named parts."""
    whole = sum(value for _, value in shares) or 1.0
    x, boxes, keys = 0.0, [], []
    for index, (name, value) in enumerate(shares, 1):
        width = WIDTH * value / whole
        tip = f"{html.escape(name)}: {value:.1f} s, {100 * value / whole:.1f} %"
        boxes.append(f'<rect class="f{index}" x="{x:.1f}" width="{width:.1f}" height="34"><title>{tip}</title></rect>')
        keys.append(f'<span class="key k{index}">{tip}</span>')
        x += width
    bar = f'<svg class="bar" viewBox="0 0 {WIDTH} 34" preserveAspectRatio="none" role="img">{"".join(boxes)}</svg>'
    return f'{bar}<div class="legend">{"".join(keys)}</div>'


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
    """A running mean over a share of the points; the window grows with the first ones."""
    window = max(1, round(len(points) * share))
    result, total = [], 0.0
    for index, (x, y) in enumerate(points):
        total += y - (points[index - window][1] if index >= window else 0.0)
        result.append((x, total / min(index + 1, window)))
    return result


def number(value: float) -> str:
    """A number as short as it can be read."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.4g}"


def _grid(place: Place, x_ticks: list[float], y_ticks: list[float], unit: str) -> str:
    parts = []
    for value in y_ticks:
        _, y = place(0, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(value)}{unit}</text>')
    for value in x_ticks:
        x, _ = place(value, y_ticks[0])
        if x <= WIDTH - RIGHT + 1:
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{number(value)}</text>')
    return "".join(parts)


def _line(place: Place, line: Line) -> str:
    places = [place(x, y) for x, y in line.points if math.isfinite(y)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    drawn = f'<polyline class="l{line.kind}{" faint" if line.faint else ""}" points="{path}"/>'
    dots = "".join(
        f'<circle class="d{line.kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{number(point[1])}</title></circle>'
        for (x, y), point in zip(places, line.points, strict=False)
    )
    return drawn + (dots if line.dots else "")
