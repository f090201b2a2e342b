"""Where the wall-clock seconds of a process go."""

import contextlib
import time
from collections.abc import Iterator

CAUSES = ("init", "data_wait", "compute", "communication", "checkpoint", "validation", "other")


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
