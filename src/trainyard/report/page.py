"""Building blocks of our pages: the frame, cards and tables."""

import html
from collections.abc import Sequence
from typing import Any

from trainyard.report.style import STYLE


def page(title: str, body: str) -> str:
    """Return a whole page that needs nothing else."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def card(title: str, content: str, wide: bool = False) -> str:
    """Return a part of the page under a heading."""
    return f'<section class="card{" wide" if wide else ""}"><h2>{html.escape(title)}</h2>{content}</section>'


def tiles(values: Sequence[tuple[str, str]]) -> str:
    """Large numbers with what they are: (number, meaning)."""
    boxes = (f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>'
             for value, name in values)  # fmt: skip
    return f'<div class="tiles">{"".join(boxes)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], marked: int | None = None) -> str:
    """Return a table; a heading that begins with # is that of a column of numbers; `marked` is a row to stress."""
    if not rows:
        return '<p class="none">nothing recorded yet</p>'
    kinds = [' class="num"' if name.startswith("#") else "" for name in head]
    names = "".join(f"<th{kind}>{html.escape(name.lstrip('#'))}</th>" for kind, name in zip(kinds, head, strict=True))
    body = []
    for index, row in enumerate(rows):
        cells = "".join(f"<td{kind}>{_cell(value)}</td>" for kind, value in zip(kinds, row, strict=True))
        body.append(f'<tr class="slow">{cells}</tr>' if index == marked else f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table><tr>{names}</tr>{"".join(body)}</table></div>'


def note(text: str) -> str:
    """Return a remark below a chart."""
    return f'<p class="note">{html.escape(text)}</p>'


class Markup(str):
    """Text that is HTML already."""


def _cell(value: Any) -> str:
    return value if isinstance(value, Markup) else html.escape(str(value))
