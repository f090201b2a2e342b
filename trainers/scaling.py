"""Compare runs of the same training on several numbers of processes: efficiency, and a model of communication.

    python -m trainers.scaling RUN...            a table, and scaling.html with the plots
    python -m trainers.scaling RUN... --json     the same numbers as JSON

The model is that of a ring: T = 2 (P - 1) a + 2 (P - 1) / P * M / B for P processes, with the latency a, M bytes of
gradients and the bandwidth B (Thakur, Rabenseifner and Gropp 2005; Patarasuk and Yuan 2009). It is fitted to the
communication that a run has measured as not hidden behind backward, so a and B are what is left of latency and
bandwidth after hiding; flags set them instead.
"""

import argparse
import itertools
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainers.exits import UserError, guarded
from trainers.files import read_json, write_atomically
from trainers.telemetry.clock import PARTS
from trainers.telemetry.metrics import Event, read_events

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
class Run:
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
class Link:
    """The model's two constants, in seconds and bytes per second, and where each is from."""

    latency: float
    bandwidth: float
    origin: str


@dataclass(frozen=True)
class Row:
    """A run compared with the smallest one."""

    run: Run
    speedup: float
    efficiency: float
    predicted: float


@dataclass(frozen=True)
class Comparison:
    """All runs of one strategy, smallest first, and what the model says up to larger numbers of processes."""

    strategy: str
    policy: str
    rows: list[Row]
    link: Link
    gradient_bytes: float
    curve: list[tuple[int, float]]


def read_run(path: Path) -> tuple[Run, dict[str, Any]]:
    """What a run measured, without its first line of metrics (warming up), validations and checkpoints."""
    summary = read_json(path / "summary.json")
    if not summary:
        raise UserError(f"{path} holds no summary.json: give run directories of runs that have ended")
    lines = [event for event in read_events(path / "metrics.jsonl") if event["event"] == "train"]
    if len(lines) < 3:
        raise UserError(f"{path} has {len(lines)} lines of training metrics; 3 are needed (see log.every_steps)")
    world, used = int(summary["world_size"]), lines[1:]
    steps, samples = (used[-1][key] - lines[0][key] for key in ("step", "samples"))
    parts = {part: _total(used, part) / steps for part in (*PARTS, "other")}
    step = sum(parts.values())
    batch = int(summary["identity"]["batch.global"])
    run = Run(str(path), world, str(summary["strategy"]), batch, samples / steps / step, step, **parts)
    return run, summary


def _total(lines: Sequence[Event], part: str) -> float:
    return float(sum(line["seconds"].get(part, 0.0) for line in lines))


def batch_policy(runs: Sequence[Run]) -> str:
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
        *((name, [_at(summary, keys) for summary in summaries]) for name, keys in SAME),
        ("devices", devices),
    ]:
        for path, value in zip(paths, values, strict=True):
            if value != values[0]:
                raise UserError(
                    f"{name} = {value!r} in {path}, but {values[0]!r} in {paths[0]}: their rates cannot be compared; "
                    "leave one of them out"
                )


def _at(tree: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


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


def ring(world: int, size: float, link: Link) -> float:
    """Seconds to sum `size` bytes over the processes of a ring."""
    return 2 * (world - 1) * link.latency + 2 * (world - 1) / world * size / link.bandwidth


def fit(runs: Sequence[Run], size: float, latency: float | None, bandwidth: float | None) -> Link:
    """Latency and bandwidth by least squares over the runs, neither below zero; what is given is kept."""
    several = [run for run in runs if run.world > 1]
    if (latency is not None and bandwidth is not None) or not several:
        how = "as set by flags" if latency is not None and bandwidth is not None else "defaults: no run on several"
        return Link(latency if latency is not None else DEFAULT_LATENCY, bandwidth or DEFAULT_BANDWIDTH, how)
    columns = np.array([[2 * (run.world - 1), 2 * (run.world - 1) / run.world * size] for run in several])
    measured = np.array([run.communication for run in several])
    free = [index for index, given in enumerate((latency, bandwidth)) if given is None]
    known = np.array([latency or 0.0, 1 / bandwidth if bandwidth else 0.0])
    if len({run.world for run in several}) < len(free):  # one number cannot tell both
        known[0], free = DEFAULT_LATENCY, [1]
    solution = known.copy()
    solution[free] = np.linalg.lstsq(columns[:, free], measured - columns @ known, rcond=None)[0]
    if len(free) == 2 and solution.min() < 0:  # the other one alone
        worse = int(solution.argmin())
        solution[worse], column = 0.0, columns[:, 1 - worse]
        solution[1 - worse] = column @ measured / (column @ column)
    solution = solution.clip(min=0.0)
    names = " and ".join(("latency", "bandwidth")[index] for index in free)
    return Link(float(solution[0]), 1 / max(float(solution[1]), 1e-15), f"{names} fitted to the runs")


def compare(runs: Sequence[Run], size: float, latency: float | None, bandwidth: float | None, up_to: int) -> Comparison:
    """Compare the runs of one strategy with the smallest of them."""
    runs = sorted(runs, key=lambda run: run.world)
    for one, other in itertools.pairwise(runs):
        if one.world == other.world:
            raise UserError(f"{one.path} and {other.path} are both {one.strategy} on {one.world} processes; give one")
    base, policy = runs[0], batch_policy(runs)
    link = fit(runs, size, latency, bandwidth)

    def predicted(world: int) -> float:
        batch = base.batch if policy.startswith("fixed global") else base.batch / base.world * world
        compute = base.compute * (batch / world) / (base.batch / base.world)
        return batch / (base.data_wait + compute + base.other + ring(world, size, link))

    rows = [
        Row(run, run.rate / base.rate, run.rate / base.rate / (run.world / base.world), predicted(run.world))
        for run in runs
    ]
    most = up_to or 4 * runs[-1].world
    worlds = sorted(
        {*(run.world for run in runs), *(base.world * 2**n for n in range(20) if base.world * 2**n <= most)}
    )
    return Comparison(runs[-1].strategy, policy, rows, link, size, [(world, predicted(world)) for world in worlds])


def series(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs by strategy; a run on one process without any is the smallest one of each that has none of its own."""
    alone = [run for run in runs if run.strategy == "single"]
    others = {run.strategy: [other for other in runs if other.strategy == run.strategy] for run in runs}
    if alone and len(others) > 1:
        del others["single"]
        for mine in others.values():
            if all(run.world > 1 for run in mine):
                mine.extend(alone)
    return others


def as_text(comparison: Comparison) -> str:
    """A table for the console."""
    lines = [
        f"{comparison.strategy}, {comparison.policy}",
        f"{'processes':>9} {'img/s':>10} {'per process':>12} {'speed-up':>9} {'efficiency':>11} {'step ms':>9} "
        f"{'data ms':>8} {'comm ms':>8} {'model img/s':>12}",
    ]
    for row in comparison.rows:
        run = row.run
        lines.append(
            f"{run.world:>9} {run.rate:>10,.1f} {run.rate / run.world:>12,.1f} {row.speedup:>8.2f}x "
            f"{100 * row.efficiency:>9.1f} % {1e3 * run.step:>9.2f} {1e3 * run.data_wait:>8.2f} "
            f"{1e3 * run.communication:>8.2f} {row.predicted:>12,.1f}"
        )
    link = comparison.link
    lines.append(
        f"model: {comparison.gradient_bytes / 1e6:.2f} MB a step, {1e6 * link.latency:.4g} us latency, "
        f"{link.bandwidth / 1e9:.3g} GB/s ({link.origin})"
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the runs that are named."""
    parser = argparse.ArgumentParser(prog="python -m trainers.scaling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run directories, one per number of processes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--html", type=Path, default=Path("scaling.html"), help="where the page goes (%(default)s)")
    parser.add_argument("--latency-us", type=float, help="the model's latency in microseconds, instead of fitting it")
    parser.add_argument("--bandwidth-gb", type=float, help="the model's bandwidth in GB/s, instead of fitting it")
    parser.add_argument("--gradient-mb", type=float, help="MB of gradients a step, instead of the published weights'")
    parser.add_argument("--up-to", type=int, default=0, help="processes up to which the model looks; default: 4 times")
    options = parser.parse_args(argv)
    found = [read_run(path) for path in options.runs]
    refuse_different(options.runs, [summary for _, summary in found])
    summaries = {run.path: summary for run, summary in found}
    comparisons = []
    for runs in series([run for run, _ in found]).values():
        own = summaries[runs[0].path]
        published = (size for run in runs if (size := gradient_bytes(Path(run.path), own)) is not None)
        size = options.gradient_mb * 1e6 if options.gradient_mb else next(published, None)
        if size is None:
            raise UserError(f"{runs[0].path} has not published its weights: give the size as --gradient-mb")
        latency = options.latency_us / 1e6 if options.latency_us is not None else None
        bandwidth = options.bandwidth_gb * 1e9 if options.bandwidth_gb else None
        comparisons.append(compare(runs, size, latency, bandwidth, options.up_to))
    from trainers.report.scaling import render  # beside the other pages

    write_atomically(options.html, render(comparisons, found[0][1]).encode())
    if options.json:
        print(json.dumps([asdict(comparison) for comparison in comparisons], indent=2))
    else:
        print("\n\n".join(as_text(comparison) for comparison in comparisons))
        print(f"plots: {options.html}")
    return 0


if __name__ == "__main__":
    guarded(main)
