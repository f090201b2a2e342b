"""report.html: what a run did, on one page that needs nothing else."""

from trainers.report.run import render

__all__ = ["render"]
