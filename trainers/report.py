"""report.html: what a run did, on one page that needs nothing else.

python -m trainers.report RUN        write RUN/report.html again, also for a run that is still going on
"""

import argparse
import html
import sys
from pathlib import Path
from typing import Any

import yaml

from trainers.charts import Line, Points, line_chart, smooth, stacked_bar, thin_out
from trainers.exits import UserError, guarded
from trainers.files import read_json, write_atomically
from trainers.telemetry.metrics import Event, read_events

STYLE = """
:root{--bg:#f6f7f9;--card:#fff;--ink:#1c2430;--soft:#667085;--grid:#e4e7ec;
--c1:#2563eb;--c2:#e8590c;--c3:#2f9e44;--c4:#9c36b5;--c5:#c2255c;--c6:#0c8599;--c7:#adb5bd}
@media(prefers-color-scheme:dark){:root{--bg:#10141b;--card:#1a202b;--ink:#e6eaf0;--soft:#98a2b3;--grid:#2c3442;
--c1:#6ea8fe;--c2:#ff922b;--c3:#69db7c;--c4:#da77f2;--c5:#faa2c1;--c6:#66d9e8;--c7:#6c757d}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1200px;margin:0 auto;padding:28px 18px 60px}h1{margin:0;font-size:26px}h2{font-size:15px;margin:0 0 10px}
.lead{color:var(--soft);margin:4px 0 22px;overflow-wrap:anywhere}.grid2{display:grid;gap:16px;
grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}
.tiles{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));margin-bottom:16px}
.card,.tile{background:var(--card);border:1px solid var(--grid);border-radius:12px;padding:16px 18px;min-width:0}
.tile b{display:block;font-size:24px;font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:13px}
svg{width:100%;height:auto;display:block}svg.bar{height:34px;border-radius:8px}svg text{fill:var(--soft);font-size:11px}
.grid{stroke:var(--grid)}polyline{fill:none;stroke-width:2;stroke-linejoin:round}.faint{opacity:.28;stroke-width:1}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin-top:8px;font-size:13px;color:var(--soft)}
.key::before{content:"";display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--grid);overflow-wrap:anywhere}
th{color:var(--soft);font-weight:500}pre{overflow:auto;font-size:13px;margin:0}
details summary{cursor:pointer;font-weight:600}
.wide{grid-column:1/-1}.none{color:var(--soft)}.status{display:inline-block;margin-left:10px;padding:2px 10px;
border-radius:99px;font-size:13px;vertical-align:middle;background:var(--c3);color:#fff}
.status.failed,.status.running{background:var(--c2)}
""" + "".join(
    f".l{i}{{stroke:var(--c{i})}}.d{i},.f{i}{{fill:var(--c{i})}}.k{i}::before{{background:var(--c{i})}}"
    for i in range(1, 8)
)


def render(path: Path) -> str:
    """The page, from the records of a run directory."""
    summary = read_json(path / "summary.json")
    events = read_events(path / "metrics.jsonl")
    if not events and not summary:
        raise UserError(f"{path} holds no run: neither metrics.jsonl nor summary.json; give a run directory")
    train = [event for event in events if event["event"] == "train"]
    validate = [event for event in events if event["event"] == "validate"]
    status = summary.get("status", "running")
    body = [
        f'<h1>{html.escape(path.resolve().name)}<span class="status {status}">{status}</span></h1>',
        f'<p class="lead">{html.escape(_lead(summary))}</p>',
        f'<div class="tiles">{_tiles(summary, train, validate)}</div>',
        f'<div class="grid2">{_charts(train, validate)}{_time(summary)}{_tables(summary, validate)}</div>',
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(path.resolve().name)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _lead(summary: dict[str, Any]) -> str:
    if not summary:
        return "This run has no summary yet; the charts show what it has recorded so far."
    identity, versions = summary["identity"], summary["versions"]
    return (
        f"{identity['model.name']}, {identity['model.num_classes']} classes, global batch {identity['batch.global']}, "
        f"{summary['precision']}; {summary['strategy']} on {summary['world_size']} processes; "
        f"trainyard {versions['trainyard']}, torch {versions['torch']}, Python {versions['python']}"
    )


def _tiles(summary: dict[str, Any], train: list[Event], validate: list[Event]) -> str:
    last = validate[-1] if validate else {}
    seconds = sum(summary.get("seconds", {}).values())
    tiles = [
        ("top-1 accuracy", f"{last['top1']:.2f} %" if last else "-"),
        ("top-5 accuracy", f"{last['top5']:.2f} %" if last else "-"),
        ("images per second, data wait included", f"{summary.get('images_per_second') or 0:,.0f}"),
        ("steps", f"{train[-1]['step']:,}" if train else "0"),
        ("processes", str(summary.get("world_size", "-"))),
        ("wall clock, all starts", f"{int(seconds // 60)} min {seconds % 60:.0f} s"),
    ]
    return "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in tiles)


def _charts(train: list[Event], validate: list[Event]) -> str:
    loss, rate = thin_out(_points(train, "loss")), thin_out(_points(train, "images_per_second"))
    losses = [
        Line("each step", loss, faint=True),
        Line("training", smooth(loss)),
        Line("validation", _points(validate, "loss"), kind=2, dots=True),
    ]
    accuracies = [
        Line("top-1", _points(validate, "top1"), dots=True),
        Line("top-5", _points(validate, "top5"), kind=3, dots=True),
    ]
    rates = [Line("learning rate", thin_out(_points(train, "lr")), kind=4)]
    speeds = [Line("each line", rate, kind=6, faint=True), Line("all processes", smooth(rate), kind=6)]
    return (
        _card("Loss over steps", line_chart(losses))
        + _card("Validation accuracy over steps", line_chart(accuracies, unit=" %"))
        + _card("Learning rate over steps", line_chart(rates, from_zero=True))
        + _card("Images per second over steps", line_chart(speeds, from_zero=True))
    )


def _points(events: list[Event], key: str) -> Points:
    return [(float(event["step"]), float(event[key])) for event in events if key in event]


def _time(summary: dict[str, Any]) -> str:
    shares = [(cause.replace("_", " "), float(value)) for cause, value in summary.get("seconds", {}).items()]
    note = "Seconds of the first process. Communication that overlaps with backward counts as compute."
    return _card("Where the time went", f'{stacked_bar(shares)}<p class="none">{note}</p>', wide=True)


def _tables(summary: dict[str, Any], validate: list[Event]) -> str:
    epochs = [
        (event["epoch"], event["step"], f"{event['top1']:.2f} %", f"{event['top5']:.2f} %", f"{event['loss']:.4f}")
        for event in validate
    ]
    ranks = [tuple(rank.values()) for rank in summary.get("ranks", [])]
    config = html.escape(yaml.safe_dump(summary.get("config", {}), sort_keys=False))
    settings = f"<details><summary>Show</summary><pre>{config}</pre></details>"
    return (
        _card("Validations", _table(("epoch", "step", "top-1", "top-5", "loss"), epochs))
        + _card("Processes", _table(("rank", "host", "pid", "device"), ranks))
        + _card("Settings", settings, wide=True)
    )


def _card(title: str, content: str, wide: bool = False) -> str:
    return f'<section class="card{" wide" if wide else ""}"><h2>{title}</h2>{content}</section>'


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    names = "".join(f"<th>{name}</th>" for name in head)
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{names}</tr>{cells}</table>"


def main() -> int:
    """Write the report of a run."""
    parser = argparse.ArgumentParser(prog="python -m trainers.report", description="Write report.html of a run.")
    parser.add_argument("run", type=Path, help="run directory")
    path: Path = parser.parse_args().run
    write_atomically(path / "report.html", render(path).encode())
    print(path / "report.html", file=sys.stdout)
    return 0


if __name__ == "__main__":
    guarded(main)
