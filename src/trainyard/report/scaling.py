"""The command `trainyard scaling`: compares runs (comparison.py), as a table, as JSON and as a page."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from trainyard.core.exits import UserError
from trainyard.core.storage import storage
from trainyard.report.comparison import Comparison, compare, gradient_bytes, read_run, refuse_different, series
from trainyard.report.scaling_page import render


def as_text(comparison: Comparison) -> str:
    """Return a table for the console."""
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
    parser = argparse.ArgumentParser(
        prog="trainyard scaling",
        description="Compare runs of the same training on several numbers of processes: efficiency, and a model of "
        "communication.",
    )
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
    storage.write_file(options.html, render(comparisons, found[0][1]).encode())
    if options.json:
        print(json.dumps([asdict(comparison) for comparison in comparisons], indent=2))
    else:
        print("\n\n".join(as_text(comparison) for comparison in comparisons))
        print(f"plots: {options.html}")
    return 0
