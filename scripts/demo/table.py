"""Print what the demo's jobs made, as a table, from the files that `make demo` fetched.

python scripts/demo/table.py build/demo
"""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table


def dataset_line(manifest: dict) -> str:
    """Say how many samples and bytes were verified."""
    splits = manifest["splits"]
    counts = ", ".join(f"{split['samples']:,} {name}" for name, split in splits.items())
    size = sum(split["bytes"] for split in splits.values()) / 1e6
    return f"dataset: {counts} samples verified, {size:.1f} MB, {manifest['classes']} classes"


def jobs_table(summaries: dict[str, dict]) -> Table:
    """Lay the runs' summaries side by side."""
    table = Table(title="what ran")
    for column in ("job", "state", "strategy", "world size", "hosts", "top-1 %", "img/s", "seconds"):
        table.add_column(column, justify="left" if column in ("job", "state", "strategy") else "right")
    for job, s in summaries.items():
        hosts = len({rank["host"] for rank in s["ranks"]})
        seconds = sum(s["seconds"].values())
        table.add_row(job, s["status"], s["strategy"], str(s["world_size"]), str(hosts), f"{s['top1']:.2f}",
                      f"{s['images_per_second']:,.0f}", f"{seconds:.1f}")  # fmt: skip
    return table


def main(folder: Path) -> int:
    """Print the dataset's line and the table; end 1 when a run has not finished."""
    console = Console(width=110)
    console.print(dataset_line(json.loads((folder / "data" / "manifest.json").read_text())))
    summaries = {job: json.loads((folder / job / "summary.json").read_text()) for job in ("pytorchjob", "mpijob")}
    console.print(jobs_table(summaries))
    return 0 if all(s["status"] == "finished" for s in summaries.values()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
