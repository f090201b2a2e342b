"""Where the wall-clock seconds of a process go."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

CAUSES = ("init", "data_wait", "compute", "communication", "checkpoint", "validation", "other")


def process_start() -> float:
    """When this process was started, on the monotonic clock: imports are a part of what a start costs."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return started + time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Adds every second to exactly one cause; what is in no `spent` block is `other`."""

    def __init__(self, began: float, before: dict[str, float] | None = None) -> None:
        self.seconds = dict.fromkeys(CAUSES, 0.0) | (before or {})
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

    def begin(self) -> None:
        """Init is over."""
        self._tick()
        self._stack[0] = "other"

    def add(self, before: dict[str, float]) -> None:
        """Count what earlier starts of the run have spent."""
        for cause, seconds in before.items():
            self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds

    def read(self) -> dict[str, float]:
        """Seconds by cause so far."""
        self._tick()
        return {cause: round(seconds, 3) for cause, seconds in self.seconds.items()}

    def _tick(self) -> None:
        now = time.monotonic()
        self.seconds[self._stack[-1]] += now - self._last
        self._last = now
