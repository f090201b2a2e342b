"""Compare runs of the same training on several numbers of processes: efficiency, and a model of communication.

The model is that of a ring: T = 2 (P - 1) a + 2 (P - 1) / P * M / B for P processes, with the latency a, M bytes of
gradients and the bandwidth B (Thakur, Rabenseifner and Gropp 2005; Patarasuk and Yuan 2009). It is fitted to the
communication that a run has measured as not hidden behind backward, so a and B are what is left of latency and
bandwidth after hiding; flags set them instead.
"""

import itertools
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.core.exits import UserError
from trainyard.core.files import value_at
from trainyard.core.storage import storage
from trainyard.telemetry.clock import PARTS
from trainyard.telemetry.metrics import Event, read_events

DEFAULT_LATENCY, DEFAULT_BANDWIDTH = 20e-6, 10e9  # seconds; bytes per second
# What must be the same: (name, where it is in summary.json)
SAME = (
    ("model", ("model",)),
    ("number of classes", ("identity", "model.num_classes")),
    ("precision", ("precision",)),
    ("data.image_size", ("config", "data", "image_size")),
    ("batch.micro", ("config", "batch", "micro")),
    ("model.batch_norm", ("config", "model", "batch_norm")),
)


@dataclass(frozen=True)
class MeasuredRun:
    """One run as measured: times in seconds per step of the first process, rates in samples per second of all."""

    path: str
    world: int
    strategy: str
    batch: int
    rate: float
    step: float
    data_wait: float
    compute: float
    communication: float
    other: float


@dataclass(frozen=True)
class LinkModel:
    """The model's two constants, in seconds and bytes per second, and where each is from."""

    latency: float
    bandwidth: float
    origin: str


@dataclass(frozen=True)
class Row:
    """A run compared with the smallest one."""

    run: MeasuredRun
    speedup: float
    efficiency: float
    predicted: float


@dataclass(frozen=True)
class Comparison:
    """All runs of one strategy, smallest first, and what the model says up to larger numbers of processes."""

    strategy: str
    policy: str
    rows: list[Row]
    link: LinkModel
    gradient_bytes: float
    curve: list[tuple[int, float]]


def read_run(path: Path) -> tuple[MeasuredRun, dict[str, Any]]:
    """Return what a run measured, without its first line of metrics (warming up), validations and checkpoints."""
    summary = storage.read_json(path / "summary.json")
    if not summary:
        raise UserError(f"{path} holds no summary.json: give run directories of runs that have ended")
    events = read_events(path / "metrics.jsonl")
    lines = [event for event in events if event["event"] == "train" and {"samples", "seconds"} <= event.keys()]
    if len(lines) < 3:
        raise UserError(f"{path} has {len(lines)} lines of training metrics; 3 are needed (see log.every_steps)")
    world, used = int(summary["world_size"]), lines[1:]
    steps, samples = (used[-1][key] - lines[0][key] for key in ("step", "samples"))
    parts = {part: _total(used, part) / steps for part in (*PARTS, "other")}
    step = sum(parts.values())
    batch = int(summary["identity"]["batch.global"])
    run = MeasuredRun(str(path), world, str(summary["strategy"]), batch, samples / steps / step, step, **parts)
    return run, summary


def _total(lines: Sequence[Event], part: str) -> float:
    return float(sum(line["seconds"].get(part, 0.0) for line in lines))


def batch_policy(runs: Sequence[MeasuredRun]) -> str:
    """Whether the global batch is fixed or grows with the processes; another set of runs cannot be compared."""
    if len({run.batch for run in runs}) == 1:
        return "fixed global batch (strong scaling)"
    if len({run.batch / run.world for run in runs}) == 1:
        return "fixed batch per process (weak scaling)"
    values = ", ".join(f"{run.batch} on {run.world} processes" for run in runs)
    raise UserError(
        f"the global batch is neither the same in all runs nor grows with the processes: {values}; compare runs with "
        "the same batch.global, or with the same batch.per_process"
    )


def refuse_different(paths: Sequence[Path], summaries: Sequence[dict[str, Any]]) -> None:
    """Refuse runs whose rates say nothing about each other."""
    devices = [sorted({str(rank.get("gpu") or rank["device"].partition(":")[0]) for rank in summary["ranks"]})
               for summary in summaries]  # fmt: skip
    for name, values in [
        *((name, [value_at(summary, *keys) for summary in summaries]) for name, keys in SAME),
        ("devices", devices),
    ]:
        for path, value in zip(paths, values, strict=True):
            if value != values[0]:
                raise UserError(
                    f"{name} = {value!r} in {path}, but {values[0]!r} in {paths[0]}: their rates cannot be compared; "
                    "leave one of them out"
                )


def gradient_bytes(path: Path, summary: dict[str, Any]) -> float | None:
    """Bytes that a ring carries per step: the published weights' elements, in the type in which gradients travel."""
    try:
        with (path / "published" / "model.safetensors").open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    except (OSError, ValueError, struct.error):
        return None
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    elements = sum(math.prod(entry["shape"]) for name, entry in entries.items() if "running_" not in name)
    comm, horovod = summary["config"].get("comm", {}), summary["config"].get("horovod", {})
    compression = horovod.get("compression") if summary["strategy"] == "horovod" else comm.get("compression")
    wide = summary["precision"] == "fp64" or comm.get("gradients") == "fp64"
    size = 8 if wide else 2 if compression not in (None, "none") else 4
    # FSDP fetches the weights twice and sums gradients into parts: three halves of a ring
    return float(elements * size * (1.5 if summary["strategy"] == "fsdp" else 1.0))


def ring(world: int, size: float, link: LinkModel) -> float:
    """Seconds to sum `size` bytes over the processes of a ring."""
    return 2 * (world - 1) * link.latency + 2 * (world - 1) / world * size / link.bandwidth


def fit(runs: Sequence[MeasuredRun], size: float, latency: float | None, bandwidth: float | None) -> LinkModel:
    """Latency and bandwidth by least squares over the runs, neither below zero; given constants are kept."""
    several = [run for run in runs if run.world > 1]
    if (latency is not None and bandwidth is not None) or not several:
        how = "as set by flags" if latency is not None and bandwidth is not None else "defaults: no run on several"
        return LinkModel(latency if latency is not None else DEFAULT_LATENCY, bandwidth or DEFAULT_BANDWIDTH, how)
    columns = np.array([[2 * (run.world - 1), 2 * (run.world - 1) / run.world * size] for run in several])
    measured = np.array([run.communication for run in several])
    free = [index for index, given in enumerate((latency, bandwidth)) if given is None]
    known = np.array([latency or 0.0, 1 / bandwidth if bandwidth else 0.0])
    if len({run.world for run in several}) < len(free):  # one run cannot determine both
        known[0], free = DEFAULT_LATENCY, [1]
    solution = known.copy()
    solution[free] = np.linalg.lstsq(columns[:, free], measured - columns @ known, rcond=None)[0]
    if len(free) == 2 and solution.min() < 0:  # the other one alone
        worse = int(solution.argmin())
        solution[worse], column = 0.0, columns[:, 1 - worse]
        solution[1 - worse] = column @ measured / (column @ column)
    solution = solution.clip(min=0.0)
    names = " and ".join(("latency", "bandwidth")[index] for index in free)
    return LinkModel(float(solution[0]), 1 / max(float(solution[1]), 1e-15), f"{names} fitted to the runs")


def compare(
    runs: Sequence[MeasuredRun], size: float, latency: float | None, bandwidth: float | None, up_to: int
) -> Comparison:
    """Compare the runs of one strategy with the smallest of them."""
    runs = sorted(runs, key=lambda run: run.world)
    for one, other in itertools.pairwise(runs):
        if one.world == other.world:
            raise UserError(f"{one.path} and {other.path} are both {one.strategy} on {one.world} processes; give one")
    base, policy = runs[0], batch_policy(runs)
    link = fit(runs, size, latency, bandwidth)

    def predict_rate(world: int) -> float:
        batch = base.batch if policy.startswith("fixed global") else base.batch / base.world * world
        compute = base.compute * (batch / world) / (base.batch / base.world)
        return batch / (base.data_wait + compute + base.other + ring(world, size, link))

    rows = [
        Row(run, run.rate / base.rate, run.rate / base.rate / (run.world / base.world), predict_rate(run.world))
        for run in runs
    ]
    most = up_to or 4 * runs[-1].world
    worlds = sorted(
        {*(run.world for run in runs), *(base.world * 2**n for n in range(20) if base.world * 2**n <= most)}
    )
    return Comparison(runs[-1].strategy, policy, rows, link, size, [(world, predict_rate(world)) for world in worlds])


def series(runs: Sequence[MeasuredRun]) -> dict[str, list[MeasuredRun]]:
    """Return the runs by strategy.

    A run on one process without a strategy is the baseline of every strategy that has no run on one process itself.
    """
    alone = [run for run in runs if run.strategy == "single"]
    others = {run.strategy: [other for other in runs if other.strategy == run.strategy] for run in runs}
    if alone and len(others) > 1:
        del others["single"]
        for mine in others.values():
            if all(run.world > 1 for run in mine):
                mine.extend(alone)
    return others
