"""How long each test file takes on this machine, kept in build/ for `make quick`, which has to choose."""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

LATE = "the time is over; BUDGET=SECONDS make quick has more"  # why scripts/quick/deadline.py skips a test
KEPT = Path(__file__).resolve().parents[1] / "build" / "test-seconds.json"


class Seconds:
    """Adds up the seconds of each file; those of files that were run as a whole are kept."""

    def __init__(self, kept: Path = KEPT) -> None:
        self.of_file: dict[str, float] = defaultdict(float)
        self.partly: set[str] = set()
        self.kept = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[0]
        self.of_file[name] += report.duration
        if report.failed or (report.skipped and LATE in str(report.longrepr)):
            self.partly.add(name)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        option = session.config.option
        if option.keyword or "not soak" not in option.markexpr or any("::" in word for word in session.config.args):
            return
        try:
            self.keep(json.loads(self.kept.read_text()))
        except (OSError, ValueError):
            self.keep({})

    def keep(self, before: dict[str, float]) -> None:
        """Write the seconds of whole files over what was known before."""
        whole = {name: round(spent, 1) for name, spent in self.of_file.items() if name not in self.partly}
        self.kept.parent.mkdir(exist_ok=True)
        part = self.kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({**before, **whole}, indent=0, sort_keys=True))
        part.replace(self.kept)
