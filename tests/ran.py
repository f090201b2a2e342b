"""What ran with which version: tests that show it say so, and where they end it is noted in build/ran.jsonl.

`python -m hack.compatibility` takes the notes into docs/compatibility.md. A test on the cluster has the mark
`shows(what, *programs)`, and tests/e2e/running.py asks for their versions while it runs; one that changes versions
records them itself: `record_property("ran", (program, version, what))`.
"""

import json
import os
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "ran.jsonl"
PROPERTY = "ran"
OTHERS = ("TRAINYARD_TRAINER", "TRAINYARD_KUEUE", "TRAINYARD_MPI_OPERATOR")  # set, they put other versions there
CHOICES = ("keyword", "lf", "deselect")  # pytest's options that leave tests out
# What several tests try
DDP, HOROVOD, MOVED = "trains with DDP", "trains with Horovod", "takes over a run"
Cell = tuple[str, str, str]  # a program, its version, and what was tried


class Ran:
    """Notes of each cell whether all of its tests passed; those that were skipped show nothing."""

    def __init__(self, worker: bool = False, kept: Path = KEPT) -> None:
        self.worker, self.kept = worker, kept
        self.cells: dict[Cell, dict[str, bool]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, cell in report.user_properties:
            shows = report.failed or (report.passed and report.when == "call")  # a skipped test's teardown passes, too
            if name == PROPERTY and isinstance(cell, tuple | list) and shows:  # a list, from a worker
                program, version, tried = map(str, cell)
                self.note([(program, version, tried)], report.passed, "soak" in report.keywords)

    def note(self, cells: Iterable[Cell], passed: bool, soak: bool) -> None:
        """Note the outcome of cells; none that has failed passes in the same run."""
        for cell in cells:
            before = self.cells.get(cell, {"passed": True, "soak": True})
            self.cells[cell] = {"passed": before["passed"] and passed, "soak": before["soak"] and soak}

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Append what ran, unless tests were chosen or interrupted, which may be less than shows a cell."""
        config = session.config
        chosen = any("::" in word for word in config.args) or any(config.getoption(name, None) for name in CHOICES)
        if self.worker or not self.cells or chosen or exitstatus == pytest.ExitCode.INTERRUPTED:
            return
        of_run = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}
        others = any(os.environ.get(name) for name in OTHERS)
        self.kept.parent.mkdir(exist_ok=True)
        with self.kept.open("a") as file:
            for (program, version, tried), found in self.cells.items():
                one = {"program": program, "version": version, "tried": tried, "passed": found["passed"]}
                file.write(json.dumps(one | {"soak": found["soak"] or others} | of_run) + "\n")


def commit() -> str:
    """Return the commit that the tree is of."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
