"""Measures how long a process only waits for gradients, without waiting for its device."""

import time
from collections import deque

import torch


class Waiting:
    """Adds up the time between marks, by the wall clock on the CPU and by the device on a GPU.

    On a GPU the marks are events in its stream; the time between them is read once both have passed.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = 0.0
        self._since: float | torch.cuda.Event | None = None
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin(self) -> None:
        """Mark the beginning of a wait."""
        self._since = self._mark()

    def end(self) -> None:
        """Mark the end of a wait; without a beginning, does nothing."""
        since, self._since = self._since, None
        if isinstance(since, float):
            self._seconds += time.monotonic() - since
        elif since is not None:
            now = self._mark()
            assert not isinstance(now, float)
            self._pairs.append((since, now))

    def read(self) -> float:
        """Seconds since the last reading."""
        while self._pairs and self._pairs[0][1].query():  # type: ignore[no-untyped-call]
            since, until = self._pairs.popleft()
            self._seconds += since.elapsed_time(until) / 1000
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _mark(self) -> "float | torch.cuda.Event":
        if not self._cuda:
            return time.monotonic()
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
