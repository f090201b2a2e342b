"""report.html: what a run did, on one page that needs nothing else."""

from pathlib import Path

from trainyard.core.files import write_atomically
from trainyard.report.run import render

__all__ = ["render", "write"]


def write(path: Path, staging: Path | None = None) -> None:
    """Write report.html of the run in a run directory."""
    write_atomically(path / "report.html", render(path).encode(), via=staging)
