"""trainyard report RUN        write RUN/report.html again, also for a run that is not over."""

import argparse
from pathlib import Path

from trainyard import report


def main() -> int:
    """Write the report of a run."""
    parser = argparse.ArgumentParser(prog="trainyard report", description="Write report.html of a run.")
    parser.add_argument("run", type=Path, help="run directory")
    path: Path = parser.parse_args().run
    report.write(path)
    print(path / "report.html")
    return 0
