"""The cards of a run's page."""

import html
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from trainyard.config import Config, build, flat
from trainyard.config.estimate import Expected, expect, work_of
from trainyard.core.exits import UserError
from trainyard.core.storage import storage
from trainyard.report.confusion import Confusion, matrix, read_confusion, worst
from trainyard.report.page import Markup, card, note, table
from trainyard.report.svg import (
    Line,
    Points,
    Share,
    duration,
    line_chart,
    number,
    smooth,
    stacked_area,
    stacked_bar,
    thin_out,
)
from trainyard.telemetry.clock import CAUSES, PARTS
from trainyard.telemetry.metrics import Event

COLOURS = {
    "compute": 3, "data_wait": 2, "communication": 4, "checkpoint": 1, "validation": 6, "init": 7, "lost": 5,
    "restart_wait": 8, "publish": 10, "other": 9,
}  # fmt: skip
SPLIT = ("compute", "data_wait", "communication", "checkpoint", "validation", "other")
MOST_RANKS = 16
MOST_INTERRUPTIONS = 10  # in the table
# The phases of an interruption, in their order, and what of a `start` line each is
PHASES = {
    "repeated": ("repeated",), "noticing": ("noticing",), "away": ("away",), "loading": ("launching", "loading"),
    "joining": ("joining",), "building": ("building",),
}  # fmt: skip
MOST_DRAWN = 24  # classes of a drawn matrix


def notices(path: Path, status: str) -> str:
    """Why the run ended, if it did not end well, and its last hang."""
    texts = []
    if status != "finished":
        texts += [str(message) for message in [storage.read_json(path / "failed.json").get("message")] if message]
    if hang := storage.read_json(path / "hang.json"):
        texts.append(f"This run hung once and was ended for a restart: {hang.get('message')}")
    return "".join(f'<div class="notice">{html.escape(text)}</div>' for text in texts)


def time(seconds: dict[str, float]) -> str:
    """Goodput: the whole life of the run, by cause."""
    shares = [Share(cause.replace("_", " "), seconds.get(cause, 0.0), kind) for cause, kind in COLOURS.items()]
    text = (
        "Seconds of the first process over all starts. Communication is what backward does not hide; lost is work that "
        "a restart did again; restart wait is time in which no process of the run was alive."
    )
    return card("Where the time went", stacked_bar(shares) + note(text), wide=True)


def interruptions(starts: list[Event]) -> str:
    """Return what each of the last interruptions cost, in seconds by phase; nothing for a run that had none."""
    again = [event for event in starts[1:] if {"step", "started", "seconds"} <= event.keys()]
    if not again:
        return ""
    rows = []
    for event in again[-MOST_INTERRUPTIONS:]:
        when = datetime.fromtimestamp(event["started"], UTC)
        seconds = [sum(event["seconds"].get(cause, 0.0) for cause in ("lost", "restart_wait", "init"))]
        phases = [_of_phase(event, phase) for phase in PHASES]
        rows.append((f"{when:%Y-%m-%d %H:%M:%S}", f"{event['step']:,}", *phases, *map(duration, seconds)))
    text = (
        "Repeated: work since the last checkpoint. Noticing: until a rank that hung or was cut off was given up; one "
        "that dies is noticed at once. Away: no process of the run was alive; on a cluster that is eviction, "
        "scheduling, pulling the image and the preflight. Loading: PyTorch, by the launcher and by its processes. "
        "Joining: the rendezvous. Building: the model, the data and the checkpoint. Times are UTC."
    )
    head = ("started again", "#at step", *(f"#{phase}" for phase in PHASES), "#all")
    return card("Interruptions", table(head, rows) + note(text), wide=True)


def _of_phase(event: Event, phase: str) -> str:
    """Return the seconds of a phase of an interruption; a dash where its start did not record them."""
    known = event.get("phases", {})
    parts = [known[part] for part in PHASES[phase] if part in known]
    return duration(sum(parts)) if parts else "-"


def charts(train: list[Event], validate: list[Event], restarts: list[float], many: bool) -> str:
    """Curves over steps; a dashed line marks each restart. `many`: so many classes that top-5 says something."""
    loss, rate = thin_out(_points(train, "loss")), thin_out(_points(train, "images_per_second"))
    losses = [
        Line("each line", loss, faint=True),
        Line("training", smooth(loss)),
        Line("validation", _points(validate, "loss"), kind=2, dots=True),
    ]
    accuracies = [
        Line("top-1", _points(validate, "top1"), dots=True),
        *([Line("top-5", _points(validate, "top5"), kind=3, dots=True)] if many else []),
    ]
    speeds = [Line("each line", rate, kind=6, faint=True), Line("all processes", smooth(rate), kind=6)]
    return (
        card("Loss over steps", line_chart(losses, marks=restarts))
        + card("Validation accuracy over steps", line_chart(accuracies, unit=" %", marks=restarts))
        + card("Learning rate over steps", line_chart([Line("learning rate", thin_out(_points(train, "lr")), kind=4)],
                                                      from_zero=True))
        + card("Images per second over steps", line_chart(speeds, from_zero=True, marks=restarts))
        + card("Share of the time over steps", stacked_area(_splits(train), [(name.replace("_", " "), COLOURS[name])
                                                                              for name in SPLIT]))
        + card("How far the slowest rank holds up the others", _held_up(train))
    )  # fmt: skip


def _held_up(train: list[Event]) -> str:
    """Lines of the slowest rank's lag, by its cause."""
    slow = [(float(event["step"]), event["slowest"]) for event in train if event.get("slowest")]
    if not slow:
        return '<p class="none">nothing recorded: there is only one process, or no line yet</p>'
    lines = []
    for cause, kind in (("data", 2), ("compute", 3), ("communication", 4)):
        points = [(step, 100 * line["behind"] if line["cause"] == cause else 0.0) for step, line in slow]
        lines.append(Line(cause, thin_out(points), kind=kind))
    return line_chart(lines, unit=" %", from_zero=True) + note("Share of the time that the others wait for it.")


def _points(events: list[Event], key: str) -> Points:
    return [(float(event["step"]), float(event[key])) for event in events if key in event]


def _splits(train: list[Event]) -> list[tuple[float, list[float]]]:
    """Seconds by cause of groups of lines, few enough to draw."""
    group = max(1, -(-len(train) // 120))
    rows = []
    for start in range(0, len(train), group):
        lines = train[start : start + group]
        values = [sum(line.get("seconds", {}).get(cause, 0.0) for line in lines) for cause in SPLIT]
        rows.append((float(lines[-1]["step"]), values))
    return rows


def classes(path: Path) -> str:
    """Return the worst classes and what they are predicted as; for few classes, all of them against each other."""
    found = read_confusion(path)
    if found is None:
        return ""
    rows = [
        (row.name, f"{100 * row.right / row.samples:.1f} %", row.samples,
         ", ".join(f"{name} ({count})" for name, count in row.taken_for) or "-")
        for row in worst(found)
    ]  # fmt: skip
    head = ("class", "#right", "#samples", "predicted as (times)")
    few = len(found.names) <= MOST_DRAWN
    return card("Worst classes of the last validation", table(head, rows), wide=not few) + (
        _matrix(found) if few else ""
    )


def _matrix(found: Confusion) -> str:
    text = "Rows are the truth, columns the guess; the darker, the larger the share of the row."
    return card("What each class is predicted as", matrix(found) + note(text))


def processes(summary: dict[str, Any]) -> str:
    """Each process's time, the slowest one stressed; of many, those that worked longest."""
    ranks = summary.get("ranks", [])
    slow = (summary.get("slowest_rank") or {}).get("rank")
    shown = sorted(ranks, key=lambda rank: -_work(rank))[:MOST_RANKS]
    shown.sort(key=lambda rank: int(rank["rank"]))
    rows = [
        (rank["rank"], rank["host"], rank.get("gpu") or rank["device"],
         *(duration(rank.get("seconds", {}).get(part, 0.0)) for part in PARTS))
        for rank in shown
    ]  # fmt: skip
    head = ("rank", "host", "device", "#data wait", "#compute", "#commu\u00adnication")
    marked = next((index for index, rank in enumerate(shown) if rank["rank"] == slow), None)
    left_out = f" {len(ranks) - len(shown)} faster processes are left out." if len(ranks) > len(shown) else ""
    text = "Seconds of this start. The rank in bold is the slowest: it meets the others last." + left_out
    return card("Processes", table(head, rows, marked) + (note(text) if len(ranks) > 1 else ""), wide=len(ranks) > 1)


def _work(rank: dict[str, Any]) -> float:
    seconds = rank.get("seconds", {})
    return float(seconds.get("data_wait", 0.0) + seconds.get("compute", 0.0))


def validations(validate: list[Event], many: bool) -> str:
    """Return the last validations, and the best one."""
    best = max(validate, key=lambda event: event["top1"], default=None)
    shown = validate[-10:]
    if best is not None and best not in shown:
        shown = [best, *shown]
    rows = [
        (event["epoch"], f"{event['step']:,}", f"{event['top1']:.2f} %",
         *([f"{event['top5']:.2f} %"] if many else []), f"{event['loss']:.4f}")
        for event in shown
    ]  # fmt: skip
    marked = shown.index(best) if best is not None else None
    head = ("epoch", "#step", "#top-1", *(["#top-5"] if many else []), "#loss")
    early = [event["epoch"] for event in shown if event.get("batch_norm_start")]
    text = (
        f"After epoch {', '.join(map(str, early))} BatchNorm's averages still held some of their first values: these "
        "validations show less than the model had learnt."
    )
    return card("Validations (the best in bold)", table(head, rows, marked) + (note(text) if early else ""))


def environment(summary: dict[str, Any], starts: list[Event]) -> str:
    """Versions, devices, and when the run was started."""
    versions = summary.get("versions", {})
    ranks = summary.get("ranks", [])
    devices = sorted({str(rank.get("gpu") or rank["device"].partition(":")[0]) for rank in ranks})
    rows = [
        *versions.items(),
        ("processes", len(ranks)),
        ("nodes", len({rank["host"] for rank in ranks})),
        ("devices", ", ".join(devices) or "-"),
        ("precision", summary.get("precision", "-")),
        ("starts", len(starts)),
        ("training samples", number(summary["samples"]) if "samples" in summary else "-"),
    ]
    return card("Environment", table(("what", "value"), rows))


def settings(summary: dict[str, Any]) -> str:
    """Return the settings: first those that are not the defaults, then all."""
    config = summary.get("config", {})
    if not config:
        return ""
    defaults = flat(Config.model_construct().model_dump(by_alias=True))
    changed = [
        (Markup(f"<code>{_breakable(key)}</code>"), yaml.safe_dump(value, default_flow_style=True).split("\n")[0])
        for key, value in flat(config).items()
        if defaults.get(key) != value
    ]
    whole = html.escape(yaml.safe_dump(config, sort_keys=False))
    text = (
        table(("setting", "value"), changed) + f"<details><summary>All settings</summary><pre>{whole}</pre></details>"
    )
    return card("Settings that differ from the defaults", text, wide=True)


def cost(summary: dict[str, Any]) -> str:
    """Return what was predicted of the run's time and money, beside what it has used; nothing where no setting says."""
    settings, seconds = summary.get("config", {}).get("cost", {}), summary.get("seconds", {})
    rate, price = float(settings.get("rate", 0)), float(settings.get("price", 0))
    if not seconds or not (rate or price):
        return ""
    world = int(summary["world_size"])
    predicted = _predicted(summary, rate, world) if rate else None
    used = Expected(
        training=sum(seconds.get(cause, 0.0) for cause in SPLIT if cause != "validation"),
        validation=seconds.get("validation", 0.0),
        rest=sum(seconds.get(cause, 0.0) for cause in ("init", "publish", "lost")),
        gpus=world,
    )
    shown = [("training", "training", duration), ("validation", "validation", duration),
             ("start, publication, lost steps", "rest", duration), ("all of it", "total", duration)]  # fmt: skip
    rows = [(name, say(getattr(predicted, key)) if predicted else "-", say(getattr(used, key)))
            for name, key, say in shown]  # fmt: skip
    unit = "GPU hours" if any(rank.get("gpu") for rank in summary.get("ranks", [])) else "process hours"
    costs = [(unit, 1.0, "")] + (
        [(f"at {price:g} {settings['currency']} each", price, settings["currency"])] * bool(price)
    )
    rows += [
        (name, *(f"{one.gpu_hours * factor:,.2f} {of}".strip() if one else "-" for one in (predicted, used)))
        for name, factor, of in costs
    ]
    source = f", {settings['source']}" if settings.get("source") else ""
    text = f"Predicted from {rate:g} images per second of each{source}, on {world} processes. " if predicted else ""
    return card(
        "Predicted and used",
        table(("part", "#predicted", "#used"), rows)
        + note(
            f"{text}Used is what all starts took, on as many processes as the last had, without waits between them."
        ),
    )


def _predicted(summary: dict[str, Any], rate: float, world: int) -> Expected | None:
    """Return what the settings come to at this rate; None for a run whose settings or samples are not known."""
    identity = summary.get("identity", {})
    try:
        config = build(summary["config"])
        train, batch = int(identity["data.samples"]), int(identity["batch.global"])
    except (UserError, KeyError, TypeError):
        return None
    return expect(work_of(config, train, int(summary.get("validation_samples") or 0), batch), world, rate)


def _breakable(key: str) -> str:
    """Return a setting's name that a narrow page may break at its underscores and dots."""
    return html.escape(key).replace("_", "_<wbr>").replace(".", ".<wbr>")


assert set(COLOURS) == set(CAUSES)
