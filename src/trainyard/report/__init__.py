"""report.html: what a run did, on one page that needs nothing else."""

from pathlib import Path
from typing import Any

from trainyard.core.storage import storage
from trainyard.report.run import render

__all__ = ["render", "write"]


def write(path: Path, staging: Path | None = None, summary: dict[str, Any] | None = None) -> None:
    """Write report.html of the run in a run directory, with a summary that is not written yet or the one there."""
    storage.write_file(path / "report.html", render(path, summary).encode(), via=staging)
