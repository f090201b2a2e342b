"""Measures the time of a preparation's threads by kind of work, in seconds summed over threads."""

import threading
import time

KINDS = ("fetch", "check", "decode", "rewrite", "write", "hash", "sync")


class Spent:
    """Seconds by kind, summed over threads."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self._lock = threading.Lock()

    def clock(self) -> "LapClock":
        """Start a clock for one thread's next pieces of work."""
        return LapClock(self)

    def add(self, laps: dict[str, float]) -> None:
        """Count what a clock has measured."""
        with self._lock:
            for kind, seconds in laps.items():
                self.seconds[kind] += seconds


class LapClock:
    """Divides the time between its creation and its end among the kinds."""

    def __init__(self, spent: Spent) -> None:
        self._spent = spent
        self._laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, kind: str) -> None:
        """Count the time since the last lap as spent on this."""
        now = time.perf_counter()
        self._laps[kind] = self._laps.get(kind, 0.0) + now - self._last
        self._last = now

    def end(self) -> None:
        """Add the measured time to the total."""
        self._spent.add(self._laps)
