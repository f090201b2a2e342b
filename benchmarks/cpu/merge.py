"""Merges the rows of the parts of a benchmark and prints them as a table.

python benchmarks/cpu/merge.py PARTS OUT
"""

import json
import sys
from pathlib import Path
from typing import Any

FILES = {"trainers": ("loader", "checkpoint", "step", "recipe"), "prepare": ("prepare",)}
COLUMNS = ("name", "ours", "peer", "unit", "ratio", "runs", "peer_name")


def table(rows: list[dict[str, Any]]) -> str:
    """Lay out rows in columns, numbers to the right."""
    lines = [list(COLUMNS), *([str(row.get(column, "")) for column in COLUMNS] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    numbers = {COLUMNS.index(column) for column in ("ours", "peer", "ratio", "runs")}
    return "\n".join(
        "  ".join(
            cell.rjust(widths[i]) if i in numbers else cell.ljust(widths[i]) for i, cell in enumerate(line)
        ).rstrip()
        for line in lines
    )


def main() -> None:
    """Merge and print."""
    parts, out = (Path(name) for name in sys.argv[1:3])
    for name, of in FILES.items():
        found = [json.loads((parts / f"{part}.json").read_text()) for part in of if (parts / f"{part}.json").exists()]
        rows = [row for part in found for row in part]
        if rows:
            (out / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
            print(f"\n{name}\n{table(rows)}")


if __name__ == "__main__":
    main()
