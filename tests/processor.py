"""How much processor time each test file takes, with all processes that its tests start: `pytest --processor`.

On a busy machine durations tell who else was working; processor time tells what a test costs.
"""

import os
from collections import defaultdict
from collections.abc import Generator

import pytest


def used() -> float:
    """Return this process's processor seconds, with those of its descendants that have been waited for."""
    return sum(os.times()[:4])


class Account:
    """Counts each test's seconds where it runs, and adds them up where they are reported."""

    def __init__(self) -> None:
        self.of_file: dict[str, float] = defaultdict(float)
        self.before = 0.0

    def pytest_collection_finish(self) -> None:
        self.before = used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note what has been used since the phase before ended; xdist sends the note along with the report."""
        report = yield
        now = used()
        report.processor, self.before = now - self.before, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.of_file[report.nodeid.partition("::")[0]] += getattr(report, "processor", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("processor seconds")
        for name, seconds in sorted(self.of_file.items(), key=lambda entry: -entry[1]):
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")
        terminalreporter.write_line(f"{sum(self.of_file.values()):8.1f}  in all")
