"""Run each test that failed once more, alone: one that passes then is *unstable*, and the run is green.

More than LIMIT unstable tests in a run, or a test that fails twice, fail the run. build/unstable.json has what was
unstable since scripts/test began, with the whole message and the machine's load at the time. `-p tests.unstable` asks
for it, as scripts/test does but where STRICT=1.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

LIMIT = 3


def pytest_configure(config: pytest.Config) -> None:
    kept = config.rootpath / "build" / "unstable.json"
    config.pluginmanager.register(Unstable(hasattr(config, "workerinput"), kept), "unstable")


class Unstable:
    """What failed in a run, and which of it passes alone."""

    def __init__(self, worker: bool, kept: Path) -> None:
        self.worker, self.kept = worker, kept
        self.failed: dict[str, dict[str, Any]] = {}
        self.rows: list[dict[str, Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note the machine's load where a test fails; xdist sends the note along with the report."""
        report = yield
        if report.failed:
            report.load = os.getloadavg()[0]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            row = {"test": report.nodeid, "load": getattr(report, "load", None), "message": report.longreprtext}
            self.failed.setdefault(report.nodeid, row)

    @pytest.hookimpl(trylast=True)  # after xdist has ended its workers
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Run again what failed; the run passes where all of it passes now, and no more than LIMIT tests did so."""
        if self.worker or exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(self.failed) <= LIMIT:
            return
        self.rows = [row for row in self.failed.values() if passes(row["test"], session.config)]
        self.count_apart(session.config)
        if len(self.rows) == len(self.failed) and keep(self.rows, self.kept) <= LIMIT:
            session.exitstatus = pytest.ExitCode.OK

    def count_apart(self, config: pytest.Config) -> None:
        """Let the summary count the unstable tests as what they are."""
        stats = config.pluginmanager.get_plugin("terminalreporter").stats
        names = {row["test"] for row in self.rows}
        for kind in ("failed", "error"):
            moved = [report for report in stats.get(kind, []) if report.nodeid in names]
            stats[kind] = [report for report in stats.get(kind, []) if report not in moved]
            stats.setdefault("unstable", []).extend(moved)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.rows:
            terminalreporter.section(f"unstable: failed, then passed alone ({self.kept.name} has the whole messages)")
        for row in self.rows:
            last = (row["message"].strip().splitlines() or [""])[-1]
            terminalreporter.write_line(f"{row['test']}  (load {row['load'] or 0:.1f}): {last}")


def passes(test: str, config: pytest.Config) -> bool:
    """Run a test by itself; return whether it passes."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=config.rootpath, capture_output=True, text=True, check=False)
    print(f"\nonce more, alone: {test}\n{done.stdout}{done.stderr}", flush=True)
    return done.returncode == 0


def keep(rows: list[dict[str, Any]], kept: Path) -> int:
    """Add rows to those of this run's other parts; return how many there are now."""
    kept.parent.mkdir(exist_ok=True)
    with kept.with_suffix(".lock").open("a") as lock:  # two parts of a run may end at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = json.loads(kept.read_text()) if kept.exists() else []
        kept.write_text(json.dumps(known + rows, indent=1))
    return len(known) + len(rows)
