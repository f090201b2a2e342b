"""report.html: what a run did, on one page that needs nothing else."""

from pathlib import Path

from trainyard.core.storage import storage
from trainyard.report.run import render

__all__ = ["render", "write"]


def write(path: Path, staging: Path | None = None) -> None:
    """Write report.html of the run in a run directory."""
    storage.write_file(path / "report.html", render(path).encode(), via=staging)
