"""Attributes every wall-clock second of a run to exactly one cause, over all starts of the run."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

CAUSES = (
    "init",  # from the start of the process to the first step: imports, joining, reading the checkpoint, building
    "data_wait",  # the loader had no batch ready
    "compute",  # forward, backward and optimizer, with the communication that they hide
    "communication",  # waiting for other processes, gradients included where backward does not hide them
    "checkpoint",  # training waited for a checkpoint
    "validation",
    "publish",  # after the last step: the weights, their exports, the report
    "lost",  # work after the last checkpoint, which a restart repeated
    "restart_wait",  # no process of the run was alive
    "other",
)

# What steps consist of, on every process.
PARTS = ("data_wait", "compute", "communication")


def process_start(pid: str = "self") -> float:
    """When a process was started, on the monotonic clock: imports are a part of what a start costs."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return started + time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Adds every second to exactly one cause; what is in no `spent` block is `other`."""

    def __init__(self, began: float, before: dict[str, float] | None = None) -> None:
        self.seconds = dict.fromkeys(CAUSES, 0.0) | (before or {})
        self.before = dict(before or {})
        self.started = time.time() - (time.monotonic() - began)
        self.loaded = self.joined = self._began = began
        self._stack = ["init"]
        self._last = began

    @contextlib.contextmanager
    def spent(self, cause: str) -> Iterator[None]:
        """Add the time of the block to a cause."""
        self._tick()
        self._stack.append(cause)
        try:
            yield
        finally:
            self._tick()
            self._stack.pop()

    def move(self, cause_from: str, cause_to: str, seconds: float) -> None:
        """Give seconds that were added to one cause to another; at most as many as the first one has."""
        self._tick()
        moved = min(max(seconds, 0.0), self.seconds[cause_from])
        self.seconds[cause_from] -= moved
        self.seconds[cause_to] += moved

    def note_start(self, loaded: float, joined: float) -> None:
        """Keep when this process had loaded its programs and joined the others, on the monotonic clock."""
        self.loaded, self.joined = loaded, joined

    def phases(self) -> dict[str, float]:
        """Return the seconds of this start up to the last `read`: loading programs, joining the others, building."""
        return {
            "loading": self.loaded - self._began,
            "joining": self.joined - self.loaded,
            "building": max(0.0, self._last - self.joined),
        }

    def begin(self) -> None:
        """Init is over."""
        self._tick()
        self._stack[0] = "other"

    def add(self, before: dict[str, float]) -> None:
        """Count what earlier starts of the run have spent."""
        self.spend(before)
        for cause, seconds in before.items():
            self.before[cause] = self.before.get(cause, 0.0) + seconds

    def spend(self, more: dict[str, float]) -> None:
        """Count seconds that passed before this process, and belong to no earlier start."""
        for cause, seconds in more.items():
            self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds

    def read(self) -> dict[str, float]:
        """Seconds by cause so far."""
        self._tick()
        return {cause: round(seconds, 3) for cause, seconds in self.seconds.items()}

    @property
    def lived(self) -> float:
        """Seconds that the run has lived, in this start and those before."""
        return sum(self.before.values()) + time.time() - self.started

    @property
    def start_seconds(self) -> float:
        """Seconds that this start took until its first step."""
        return self.seconds["init"] - self.before.get("init", 0.0)

    def _tick(self) -> None:
        now = time.monotonic()
        self.seconds[self._stack[-1]] += now - self._last
        self._last = now


def goodput(seconds: dict[str, float]) -> float:
    """Share of all seconds that was spent on computing, 0 to 1."""
    return seconds.get("compute", 0.0) / max(sum(seconds.values()), 1e-9)
