"""Boxes, arrows and words as SVG, which follows the reader's light or dark theme."""

from dataclasses import dataclass, field
from html import escape

STYLE = """
    .paper { fill: #ffffff; }
    .plain { fill: #f6f8fa; stroke: #57606a; }
    .disk { fill: #ddf4ff; stroke: #0969da; }
    .job { fill: #dafbe1; stroke: #1a7f37; }
    .end { fill: #ffebe9; stroke: #cf222e; }
    rect { stroke-width: 1.5; }
    text { fill: #1f2328; text-anchor: middle; }
    .small { font-size: 12px; fill: #57606a; }
    .arrow { fill: none; stroke: #57606a; stroke-width: 1.5; marker-end: url(#tip); }
    .tip { fill: #57606a; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; }
      .plain { fill: #161b22; stroke: #8b949e; }
      .disk { fill: #0c2d6b; stroke: #58a6ff; }
      .job { fill: #033a16; stroke: #3fb950; }
      .end { fill: #490202; stroke: #f85149; }
      text { fill: #e6edf3; }
      .small { fill: #9da7b3; }
      .arrow { stroke: #8b949e; }
      .tip { fill: #8b949e; }
    }"""
LINE = 19  # pixels between lines of a box


@dataclass
class Canvas:
    """A picture of so many pixels, to which shapes are added."""

    width: int
    height: int
    says: str  # for those who cannot see it
    parts: list[str] = field(default_factory=list)

    def box(self, kind: str, place: tuple[int, int, int, int], *lines: str) -> None:
        """Add a box at (left, top, width, height): its first line is its name, the others are small."""
        left, top, width, height = place
        self.parts.append(f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}" rx="8"/>')
        first = top + height / 2 - (len(lines) - 1) * LINE / 2 + 5
        for number, line in enumerate(lines):
            self.word(left + width // 2, round(first + number * LINE), line, small=number > 0)

    def word(self, x: int, y: int, text: str, small: bool = True) -> None:
        """Add a line of words, centred at x."""
        kind = ' class="small"' if small else ""
        self.parts.append(f'<text{kind} x="{x}" y="{y}">{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int], says: str = "", at: tuple[int, int] | None = None) -> None:
        """Add an arrow through points; its words are above its middle, or `at` a place."""
        way = " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path class="arrow" d="M{way}"/>')
        if says:
            (x0, y0), (x1, y1) = points[0], points[-1]
            x, y = at or ((x0 + x1) // 2, (y0 + y1) // 2 - 7)
            self.word(x, y, says)

    def svg(self) -> str:
        """Return the picture."""
        tip = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.says)}" font-family="system-ui, sans-serif" font-size="14">'
        )
        paper = f'<rect class="paper" width="{self.width}" height="{self.height}" stroke="none"/>'
        return "\n  ".join([head, f"<style>{STYLE}\n  </style>", tip, paper, *self.parts]) + "\n</svg>\n"
