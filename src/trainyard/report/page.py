"""Building blocks of our pages: the frame, its style sheet, cards and tables."""

import html
from collections.abc import Sequence
from typing import Any

KINDS = range(1, 11)  # of colours in a chart

# Light and dark, phone and desktop; it needs nothing from elsewhere
STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1c2430;--soft:#5b6675;--grid:#e4e7ec;--warn:#fff4e6;
--c1:#2563eb;--c2:#e8590c;--c3:#2f9e44;--c4:#9c36b5;--c5:#c2255c;--c6:#0c8599;--c7:#868e96;--c8:#f08c00;--c9:#ced4da;--c10:#8b5e34}
@media(prefers-color-scheme:dark){:root{--bg:#10141b;--card:#1a202b;--ink:#e6eaf0;--soft:#9aa5b5;--grid:#2c3442;
--warn:#3a2a14;--c1:#6ea8fe;--c2:#ff922b;--c3:#51cf66;--c4:#da77f2;--c5:#faa2c1;--c6:#66d9e8;--c7:#868e96;
--c8:#ffd43b;--c9:#495057;--c10:#c8a27a}}
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 18px 60px}
h1{margin:0;font-size:26px;line-height:1.25;overflow-wrap:anywhere}h2{font-size:15px;margin:0 0 10px}
.lead{color:var(--soft);margin:6px 0 20px;overflow-wrap:anywhere}
.cards{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}
.tiles{display:grid;gap:10px;grid-template-columns:repeat(4,minmax(0,1fr));margin-bottom:14px}
.card,.tile{background:var(--card);border:1px solid var(--grid);border-radius:12px;padding:14px 16px;min-width:0}
.tile b{display:block;font-size:22px;line-height:1.3;font-variant-numeric:tabular-nums;white-space:nowrap}
.tile span{color:var(--soft);font-size:13px;line-height:1.35;display:block}
.notice{background:var(--warn);border:1px solid var(--c2);border-radius:12px;padding:12px 16px;margin-bottom:14px;
overflow-wrap:anywhere}
svg{width:100%;height:auto;display:block}svg.bar{height:34px;border-radius:8px}
svg text{fill:var(--soft);font-size:10px;font-family:inherit}
.grid{stroke:var(--grid)}.mark{stroke:var(--soft);stroke-dasharray:3 4;opacity:.7}
polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}.faint{opacity:.3;stroke-width:1}.dashed{stroke-dasharray:5 4}
.legend{display:flex;flex-wrap:wrap;gap:3px 16px;margin-top:8px;font-size:13px;color:var(--soft)}
.key::before{content:"";display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--grid);vertical-align:top}
td{overflow-wrap:anywhere}th{color:var(--soft);font-weight:500}tr.slow td{font-weight:600}
th{hyphens:manual}td:first-child{min-width:4.5em}.num{text-align:right}td.num{white-space:nowrap}
pre{overflow:auto;font-size:13px;margin:8px 0 0;line-height:1.45}details summary{cursor:pointer;font-weight:600}
.wide{grid-column:1/-1}.none,.note{color:var(--soft);font-size:13px;margin:8px 0 0}
.meter{display:inline-block;height:9px;border-radius:3px;background:var(--c1);vertical-align:middle}
.status{display:inline-block;margin-left:10px;padding:2px 10px;border-radius:99px;font-size:13px;font-weight:500;
vertical-align:middle;background:#2b8a3e;color:#fff;white-space:nowrap}
.status.failed{background:#c92a2a}.status.running,.status.stopped{background:#d9480f}
@media(max-width:760px){main{padding:18px 12px 40px}h1{font-size:22px}svg text{font-size:12px}
.card,.tile{padding:12px}.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}.tile b{font-size:19px}
table{font-size:13px}td,th{padding-right:8px}}
""" + "".join(
    f".l{i}{{stroke:var(--c{i})}}.f{i}{{fill:var(--c{i})}}.k{i}::before{{background:var(--c{i})}}" for i in KINDS
)


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
