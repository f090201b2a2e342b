"""A line every few seconds about work whose end is not known beforehand: listing a tar or a folder."""

import sys
import time
from collections.abc import Callable

EVERY = 5.0


class Pulse:
    """Prints what it is given, at most once in EVERY seconds, and not before the first have passed."""

    def __init__(self) -> None:
        self._started = self._said = time.monotonic()

    def beat(self, text: Callable[[float], str]) -> None:
        """Print the text, made from the seconds since the start, if it is time."""
        now = time.monotonic()
        if now - self._said >= EVERY:
            self._said = now
            print(text(now - self._started), file=sys.stderr, flush=True)
