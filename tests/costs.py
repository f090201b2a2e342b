"""What tests cost: seconds and processor seconds of each file, and of each ring of `make test`.

A worker notes the processor time of each test, with all processes that it starts and waits for; pods have theirs
elsewhere. The costs of whole files are kept in build/, for `make quick`, which has to choose, and for the table at the
end of `make test`. On a busy machine durations tell who else was working; processor time tells what a test costs.
"""

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "test-costs.json"
RING = "TRAINYARD_RING"  # scripts/test names what it runs
SHOWN = 10


def used() -> float:
    """Return this process's processor seconds, with those of its descendants that have been waited for."""
    return sum(os.times()[:4])


class Costs:
    """Notes each test's processor seconds where it runs, and adds up where tests are reported."""

    def __init__(self, worker: bool = False, kept: Path = KEPT) -> None:
        self.worker, self.kept = worker, kept
        self.seconds: dict[str, float] = defaultdict(float)
        self.processor: dict[str, float] = defaultdict(float)
        self.tests: set[str] = set()
        self.partly: set[str] = set()
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
        name = report.nodeid.partition("::")[0]
        self.seconds[name] += report.duration
        self.processor[name] += getattr(report, "processor", 0.0)
        self.tests.add(report.nodeid)
        if report.failed:
            self.partly.add(name)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        option, ring = config.option, os.environ.get(RING, "")
        partial = option.keyword or "not soak" not in option.markexpr or any("::" in word for word in config.args)
        if self.worker or option.collectonly or (partial and not ring):
            return
        known = self.keep(ring)
        if ring:
            terminalreporter.section("what tests cost")
            terminalreporter.write_line(table(known))

    def keep(self, ring: str = "") -> dict[str, Any]:
        """Write the costs of whole files, and of the ring, over what was known before; return all of it."""
        self.kept.parent.mkdir(exist_ok=True)
        with self.kept.with_suffix(".lock").open("a") as lock:  # rings run beside each other
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = read(self.kept)
            for name in self.seconds.keys() - self.partly:
                cost = {"seconds": self.seconds[name], "processor": self.processor[name]}
                known["files"][name] = {key: round(value, 1) for key, value in cost.items()}
            if ring:
                whole = {"seconds": sum(self.seconds.values()), "processor": sum(self.processor.values())}
                known["rings"][ring] = {"tests": len(self.tests)} | {key: round(value) for key, value in whole.items()}
            part = self.kept.with_suffix(".part")
            part.write_text(json.dumps(known, indent=1, sort_keys=True))
            part.replace(self.kept)
        return known


def read(kept: Path = KEPT) -> dict[str, Any]:
    """Return what is known of files and rings; of none, where nothing was kept."""
    try:
        found = json.loads(kept.read_text())
        return {"files": dict(found["files"]), "rings": dict(found["rings"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"files": {}, "rings": {}}


def table(known: Mapping[str, Any]) -> str:
    """Lay out the rings, and the files that take most of the processor."""
    rows = [f"{'ring':28} {'tests':>6} {'seconds':>8} {'processor seconds':>18}"]
    for name, ring in known["rings"].items():
        rows.append(f"{name:28} {ring['tests']:6} {ring['seconds']:8} {ring['processor']:18}")
    whole = sum(file["processor"] for file in known["files"].values()) or 1.0
    dearest = sorted(known["files"].items(), key=lambda item: -item[1]["processor"])[:SHOWN]
    for name, file in dearest:
        share = file["processor"] / whole
        rows.append(f"{file['processor']:10.1f} s of a processor, {share:5.1%}, {file['seconds']:6.1f} s  {name}")
    return "\n".join(rows)
