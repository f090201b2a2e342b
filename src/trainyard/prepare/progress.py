"""Progress of a preparation: a bar on a terminal, elsewhere a line every few seconds."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from trainyard.core.exits import printable
from trainyard.prepare.sources.base import Traffic

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


EVERY = 5.0  # seconds between lines of a Pulse


def say(text: str) -> None:
    """Print a line about the work, at once."""
    print(printable(text), file=sys.stderr, flush=True)


class Pulse:
    """Prints a text at most once in EVERY seconds, the first time after EVERY seconds."""

    def __init__(self) -> None:
        self._started = self._said = time.monotonic()

    def beat(self, text: Callable[[float], str]) -> None:
        """Print the text, made from the seconds since the start, if it is time."""
        now = time.monotonic()
        if now - self._said >= EVERY:
            self._said = now
            say(text(now - self._started))


class ProgressMeter:
    """Counts samples and shards, and shows them from a separate thread while the block runs.

    Rates are those of the last interval; the time left follows from all of the work since the start.
    """

    def __init__(
        self, traffic: Traffic, *, samples: int, shards: int, every: float = 5.0, to: TextIO | None = None
    ) -> None:
        self._traffic = traffic
        self._samples, self._shards = samples, shards
        self._to = to or sys.stderr
        self._bar = _make_bar(self._to) if self._to.isatty() else None
        self._every = 0.25 if self._bar else every
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self.samples_done = self.shards_done = self.payload = 0

    def add(self, *, samples: int = 0, shards: int = 0, payload: int = 0) -> None:
        """Count finished work; `payload` is bytes of images."""
        with self._lock:
            self.samples_done += samples
            self.shards_done += shards
            self.payload += payload

    def __enter__(self) -> "ProgressMeter":
        """Start showing."""
        self._started = time.monotonic()
        if self._bar:
            self._bar.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""
        self._ended.set()
        self._thread.join()
        if self._bar:
            self._bar.stop()

    def _show(self) -> None:
        task = self._bar.add_task("", total=self._samples, text="") if self._bar else None
        before = (self._started, self._traffic.bytes, 0)
        while not self._ended.wait(self._every):
            now = (time.monotonic(), self._traffic.bytes, self.samples_done)
            seconds = max(now[0] - before[0], 1e-9)
            text = self._text((now[1] - before[1]) / seconds / 1e6, (now[2] - before[2]) / seconds, now[0])
            if self._bar and task is not None:
                self._bar.update(task, completed=self.samples_done, text=text)
                # Rates over a quarter of a second would flicker
                before = now if seconds >= 2 else before
            else:
                print(f"preparing: {text}", file=self._to, flush=True)
                before = now

    def _text(self, megabytes: float, images: float, now: float) -> str:
        fraction = self.samples_done / max(self._samples, 1)
        left = (now - self._started) * (1 - fraction) / fraction if fraction else None
        text = (
            f"{100 * fraction:.0f} % · {self.samples_done:,} of {self._samples:,} images · {self.shards_done} of "
            f"{self._shards} shards · {megabytes:.1f} MB/s · {images:,.0f} images/s · "
            f"{'time left unknown' if left is None else clock(left) + ' left'}"
        )
        if retries := self._traffic.retries:
            text += f" · {retries} retries (last: {self._traffic.last_trouble})"
        return text


def _make_bar(to: TextIO) -> "Bar":
    # Imported late: only a terminal needs it
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    return Bar(BarColumn(24), TextColumn("{task.fields[text]}", markup=False), console=Console(file=to), transient=True)


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
