"""Schedules of a campaign, as Hypothesis draws them: processes start with faults before them, run for some calls, are
killed; the machine stops; clocks jump; somebody damages a file. In the end there are no more faults.
"""

import contextlib
import itertools
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from calls import installed
from campaign import KINDS, Fault, Process, World
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

MOST = 3  # processes at a time
HOW: dict[str, Any] = {
    "deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "print_blob": False,
    "stateful_step_count": 16,
}  # fmt: skip
AFTER = st.one_of(st.integers(0, 40), st.integers(0, 300))
FAULTS = st.builds(Fault, st.sampled_from(KINDS), AFTER, st.integers(1, 3))
CALLS = st.one_of(st.integers(0, 60), st.integers(40, 600), st.integers(40, 600), st.just(100_000))
SEEDS = st.integers(0, 1 << 30)


class Schedule(RuleBasedStateMachine):
    """One schedule; what it is about is in the subclass."""

    total: ClassVar[Counter[str]] = Counter()

    @initialize()
    def begin(self) -> None:
        self.stack = contextlib.ExitStack()
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        base = Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        for name in ("files", "grave"):
            (base / name).mkdir()
        self.world = World(base / "files", base / "grave")
        self.checks: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.install(self.stack.enter_context(installed(self.world)))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put what the processes use in place; `self.world` is there."""
        raise NotImplementedError

    def check(self) -> None:
        """What holds at all times."""
        raise NotImplementedError

    def heal(self) -> None:
        """What holds in the end, without faults and processes."""
        raise NotImplementedError

    def damage_one(self, chance: random.Random) -> str:
        """Damage a file behind everyone's back; how, or nothing."""
        raise NotImplementedError

    def add(self, body: Callable[[], str], job: str, faults: list[Fault], beats: bool, now: int) -> Process:
        """Start a process and let it run for some calls."""
        copies = [Fault(fault.kind, fault.after, fault.times) for fault in faults]
        process = self.world.start(body, job, copies, beats)
        self.go(process, now)
        return process

    def go(self, process: Process, now: int) -> None:
        process.go(now)
        if process.ended:
            self.outcomes[process.outcome.partition(":")[0]] += 1
        self.check()

    def few(self) -> bool:
        return len(self.world.running) < MOST

    @precondition(lambda self: self.world.running)
    @rule(which=st.integers(0, MOST - 1), now=CALLS)
    def step(self, which: int, now: int) -> None:
        self.go(self.one(which), now)

    @precondition(lambda self: self.world.processes)
    @rule(
        how=st.sampled_from(["kill", "crash", "jump", "damage"]), which=st.integers(0, MOST - 1),
        seconds=st.sampled_from([-1e9, -4000.0, 4000.0, 1e9]), seed=SEEDS,
    )  # fmt: skip
    def disturb(self, how: str, which: int, seconds: float, seed: int) -> None:
        """A process is killed or its clock jumps, the machine stops, a file is damaged."""
        if how == "crash":
            self.world.crash(seed)
        elif how == "damage":
            self.world.disk.close()  # what is damaged is none of its changes
            if kind := self.damage_one(random.Random(seed)):
                self.world.counts[f"file damaged: {kind}"] += 1
        elif self.world.running and how == "kill":
            self.one(which).kill()
        elif self.world.running:
            self.one(which).skew += seconds
            self.world.counts["clock jumped"] += 1
        self.check()

    def one(self, which: int) -> Process:
        return self.world.running[which % len(self.world.running)]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            for process in self.world.running:
                process.kill()
            self.check()
            self.heal()
        finally:
            self.world.end()
            self.stack.close()
            self.total["schedules"] += 1
            self.total["processes"] += len(self.world.processes)
            self.total["calls"] += sum(process.calls for process in self.world.processes)
            for name, counts in (("fault", self.world.counts), ("check", self.checks), ("end", self.outcomes)):
                for kind, count in counts.items():
                    self.total[f"{name}: {kind}"] += count


def damaged(path: Path, chance: random.Random) -> str:
    """Change a bit of a file, cut it or remove it; which."""
    content, kind = bytearray(path.read_bytes()), chance.choice(["bit", "cut", "gone"])
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.unlink()
    if kind != "gone":
        path.write_bytes(content if kind == "bit" else content[: len(content) // 2])
    return kind


def short(machine: type[Schedule], schedules: int) -> Counter[str]:
    """The same schedules at each call: Hypothesis derives them from the machine; what they came to."""
    machine.total.clear()
    run_state_machine_as_test(machine, settings=settings(max_examples=schedules, derandomize=True, **HOW))
    return machine.total


def long(machine: type[Schedule], record: Callable[[str, object], None], what: str) -> None:
    """CAMPAIGN_SCHEDULES schedules (20,000), from CAMPAIGN_SEED (0) on; a table of what they came to."""
    machine.total.clear()
    count = int(os.environ.get("CAMPAIGN_SCHEDULES", "20000"))
    phases = [Phase.explicit, Phase.generate, Phase.shrink]
    for number in itertools.count(int(os.environ.get("CAMPAIGN_SEED", "0"))):
        how = settings(max_examples=min(250, count), phases=phases, **HOW)
        run_state_machine_as_test(seed(number)(machine), settings=how)
        if machine.total["schedules"] >= count:
            break
    for kind, number in sorted(machine.total.items()):
        record("table", (what, f"{number:>12,} {kind}"))
