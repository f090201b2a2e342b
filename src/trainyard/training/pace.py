"""Bounds how far the host runs ahead of its device: a GPU does a step's work some time after the host has asked for it.

Without a bound on that, the host's clock would tell nothing of the device: the host would wait for data, or for the
next metrics, while the device works. With it, a step ends for the clock when the device has done the one two before.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

AHEAD = 2  # steps that are asked for and not done: enough to keep the device busy while the host prepares one


class Event(Protocol):
    """A point in the device's work, such as torch.cuda.Event."""

    def query(self) -> bool:
        """Whether the device has come to it."""

    def synchronize(self) -> None:
        """Wait until the device has come to it."""

    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds of the device from this point to a later one."""


class Pace:
    """The steps that a device has not done yet; `record` marks a point in its work, None where the host does it."""

    def __init__(self, record: Callable[[], Event] | None) -> None:
        self._record = record
        self._asked: deque[Event] = deque()
        self._last: Event | None = None

    def limit_lag(self) -> None:
        """Wait until the device is at most AHEAD steps behind; called when all work of a step is enqueued."""
        if self._record:
            self._last = self._record()
            self._asked.append(self._last)
            if len(self._asked) > AHEAD:
                self._asked.popleft().synchronize()

    def wait(self) -> None:
        """Wait until the device has done all steps."""
        while self._asked:
            self._asked.popleft().synchronize()

    @property
    def lags(self) -> bool:
        """Whether the device may be behind: what is read of it then has to be waited for."""
        return self._record is not None

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin to copy a tensor to the host; the returned function waits for that, not for what is asked later."""
        if not self._record:
            return lambda: tensor
        copy = tensor.to("cpu", non_blocking=True)  # into pinned memory
        copied = self._record()

        def wait() -> Tensor:
            copied.synchronize()
            return copy

        return wait

    def idle_seconds(self) -> float:
        """For how long the device has had no work: 0 while it works, infinite where no device was asked for any."""
        if not self._record or not self._last:
            return math.inf
        if not self._last.query():
            return 0.0
        now = self._record()
        now.synchronize()  # at once, since nothing is before it
        return self._last.elapsed_time(now) / 1000


def pace_of(device: torch.device) -> Pace:
    """Return the pace of steps on a device."""

    def record() -> Event:
        # who waits for it leaves the core to the loader's threads
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event

    return Pace(record if device.type == "cuda" else None)
