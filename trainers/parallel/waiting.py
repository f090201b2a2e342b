"""Seconds in which a process only waited for gradients: measured without making it wait for its device."""

import time
from collections import deque

import torch


class Waiting:
    """Adds up the time between marks: on the CPU the wall clock's, on a GPU the device's own.

    On a GPU the marks are events in its stream of work, and their distance is read when both have come to pass; until
    then it counts for nothing, and a later reading has it.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = 0.0
        self._since: float | torch.cuda.Event | None = None
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin(self) -> None:
        """Mark that there is nothing left to do but wait."""
        self._since = self._mark()

    def end(self) -> None:
        """Mark that what was waited for is there; without a beginning, nothing."""
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
