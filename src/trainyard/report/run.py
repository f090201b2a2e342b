"""The page of one run, from the records in its run directory; also of a run that is still running or has failed."""

import html
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.core.exits import UserError
from trainyard.core.storage import storage
from trainyard.report import sections
from trainyard.report.page import page, tiles
from trainyard.report.svg import duration, number
from trainyard.telemetry.clock import goodput
from trainyard.telemetry.metrics import FEW, Event, of_kind, read_events


def render(path: Path, summary: dict[str, Any] | None = None) -> str:
    """Return the page of the run in a run directory; without a summary, with the one there."""
    summary = storage.read_json(path / "summary.json") if summary is None else summary
    events = read_events(path / "metrics.jsonl")
    if not events and not summary:
        raise UserError(f"{path} holds no run: neither metrics.jsonl nor summary.json; give a run directory")
    train, validate, starts = (of_kind(events, kind) for kind in ("train", "validate", "start"))
    status = str(summary.get("status", "running"))
    name = path.resolve().name
    many = next((event["classes"] for event in reversed(starts) if "classes" in event), FEW + 1) > FEW
    seconds = summary.get("seconds") or _seconds_so_far(train, starts)
    body = [
        f'<h1>{html.escape(name)}<span class="status {status}">{status}</span></h1>',
        f'<p class="lead">{html.escape(_lead(summary))}</p>',
        sections.notices(path, status),
        tiles(_tiles(summary, train, validate, seconds, many)),
        '<div class="cards">',
        sections.time(seconds),
        sections.interruptions(starts),
        sections.charts(train, validate, [float(event["step"]) for event in starts[1:]], many),
        sections.classes(path),
        sections.processes(summary),
        sections.validations(validate, many),
        sections.cost(summary),
        sections.environment(summary, starts),
        sections.settings(summary),
        "</div>",
    ]
    return page(name, "".join(body))


def _lead(summary: dict[str, Any]) -> str:
    if not summary:
        return "This run has no summary yet; the page shows what it has recorded so far."
    known = summary["identity"]
    finished = datetime.fromtimestamp(summary["finished_at"], UTC)
    return (
        f"{known['model.name']}, {known['model.num_classes']} classes, global batch {known['batch.global']}, "
        f"{summary['precision']}; {summary['strategy']} on {summary['world_size']} processes; "
        f"{summary['status']} on {finished:%Y-%m-%d at %H:%M} UTC"
    )


def _tiles(
    summary: dict[str, Any], train: list[Event], validate: list[Event], seconds: dict[str, float], many: bool
) -> list[tuple[str, str]]:
    last = validate[-1] if validate else {}
    rate = summary.get("images_per_second") or (train[-1]["images_per_second"] if train else 0)
    steps = summary.get("steps") or (train[-1]["step"] if train else 0)
    slow = summary.get("slowest_rank")
    return [
        (f"{last['top1']:.2f} %" if last else "-", "top-1 accuracy, last validation"),
        *([(f"{last['top5']:.2f} %" if last else "-", "top-5 accuracy")] if many else []),
        (number(rate), "images per second, waiting for data included"),
        (f"{100 * goodput(seconds):.1f} %", "goodput: share of all time that computed"),
        (duration(sum(seconds.values())), "wall clock, all starts and waits between"),
        (f"{steps:,}", f"steps, {summary['epochs']} epochs validated" if "epochs" in summary else "steps"),
        (str(summary.get("restarts", "-")), "restarts"),
        (f"rank {slow['rank']}" if slow else "-", _slowness(slow, summary.get("world_size", 0))),
    ]


def _slowness(slow: dict[str, Any] | None, world: int) -> str:
    if not slow:
        return "slowest rank: there is only one" if world == 1 else "slowest rank: not recorded yet"
    return f"slowest rank: holds up the others {100 * slow['behind']:.1f} % of the time; {slow['cause']}"


def _seconds_so_far(train: list[Event], starts: list[Event]) -> dict[str, float]:
    """Seconds by cause of a run that has no summary yet."""
    total: dict[str, float] = {}
    for event in [*starts, *train]:
        for cause, seconds in event.get("seconds", {}).items():
            total[cause] = total.get(cause, 0.0) + seconds
    return total
