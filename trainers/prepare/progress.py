"""What a preparation says while it works: a bar on a terminal, elsewhere a line every few seconds."""

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from trainers.prepare.sources.base import Traffic

_BAR = 24


class Progress:
    """Counts samples and shards, and shows them from a thread of its own while the block runs."""

    def __init__(
        self, traffic: Traffic, *, samples: int, shards: int, every: float = 5.0, to: TextIO | None = None
    ) -> None:
        self._traffic = traffic
        self._samples, self._shards = samples, shards
        self._to = to or sys.stderr
        self._terminal = self._to.isatty()
        self._every = 0.5 if self._terminal else every
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self.samples_done = self.shards_done = self.payload = 0

    def add(self, *, samples: int = 0, shards: int = 0, payload: int = 0) -> None:
        """Count what was just done."""
        with self._lock:
            self.samples_done += samples
            self.shards_done += shards
            self.payload += payload

    def say(self, text: str) -> None:
        """Print a line of its own."""
        print(f"\r\033[K{text}" if self._terminal else text, file=self._to, flush=True)

    def __enter__(self) -> "Progress":
        """Start showing."""
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""
        self._ended.set()
        self._thread.join()
        if self._terminal:
            print("\r\033[K", end="", file=self._to, flush=True)

    def _show(self) -> None:
        before = (time.monotonic(), self._traffic.bytes, 0)
        while not self._ended.wait(self._every):
            now = (time.monotonic(), self._traffic.bytes, self.samples_done)
            seconds = max(now[0] - before[0], 1e-9)
            text = self._line((now[1] - before[1]) / seconds / 1e6, (now[2] - before[2]) / seconds, now[0])
            print(
                f"\r\033[K{text}" if self._terminal else text,
                end="" if self._terminal else "\n",
                file=self._to,
                flush=True,
            )
            before = now

    def _line(self, megabytes: float, images: float, now: float) -> str:
        fraction = self.samples_done / max(self._samples, 1)
        left = (now - self._started) * (1 - fraction) / fraction if fraction else None
        bar = f"[{'#' * round(_BAR * fraction):<{_BAR}}] " if self._terminal else "preparing: "
        text = (
            f"{bar}{100 * fraction:.0f} % · {self.samples_done:,} of {self._samples:,} images · {self.shards_done} of "
            f"{self._shards} shards · {megabytes:.1f} MB/s · {images:,.0f} images/s · "
            f"{'time left unknown' if left is None else _clock(left) + ' left'}"
        )
        if retries := self._traffic.retries:
            text += f" · {retries} retries (last: {self._traffic.last_trouble})"
        return text


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
