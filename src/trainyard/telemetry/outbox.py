"""Sends a run's metrics.jsonl to a service as the file grows, from a thread of its own.

The file is the queue: training only tells the thread that there is a new line, and nothing piles up in memory while the
service is away. Once the service is back, or at the run's next start, the thread connects again and reads the file from
its beginning; what the service has already is for the connection to pass over. No fault of a service reaches the run.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from trainyard.core.storage import storage
from trainyard.telemetry.metrics import Event, is_event, parse_line

EVERY = 2.0  # seconds between messages
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds before another try
MOST = 100  # events of one message
LAST_SECONDS, STOP_SECONDS = 60.0, 5.0  # that a run which has ended, or was told to stop, waits for its last numbers

Deliver = Callable[[list[Event]], None]
Connect = Callable[[], AbstractContextManager[Deliver]]


class Outbox:
    """Hands the events of a file, in order, to what `connect` opens; `wake` it after each new line."""

    def __init__(self, name: str, file: Path, connect: Connect, say: Callable[[str], None]) -> None:
        """`name` is the service's for people. Whatever `connect` or the delivery raises is said once, and tried again.

        The file is opened here: a job that takes over the run directory replaces it, and its lines are not ours.
        """
        self.name, self._connect, self._say = name, connect, say
        self._file = storage.open_file(file)
        self._wake = threading.Condition()
        self._newer, self._closing, self._failed = True, False, False
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()

    def wake(self) -> None:
        """Say that the file has a new line."""
        with self._wake:
            self._newer = True
            self._wake.notify()

    def finish(self) -> None:
        """Have what is left sent, without waiting for it."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def join(self, seconds: float) -> bool:
        """Wait until all is sent, for so long at most; whether it was."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive() and not self._failed

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            last = self._closing
            try:
                self._send()
                return
            except Exception as error:
                if not self._failed:
                    self._say(f"{self.name} takes no numbers ({reason(error)}); the run continues, and tries again")
                self._failed = True
            if last:
                return
            with self._wake:
                self._wake.wait_for(lambda: self._closing, pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _send(self) -> None:
        """Send the file from its beginning, until the run has ended."""
        self._file.seek(0)
        self._newer = True
        with self._connect() as deliver:
            for events in self._new_events():
                deliver(events)
                if self._failed:
                    self._say(f"{self.name} takes numbers again")
                self._failed = False

    def _new_events(self) -> Iterator[list[Event]]:
        """Yield the events of the file in portions, as they appear."""
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._newer or self._closing)
                self._newer, last = False, self._closing
            while events := read_portion(self._file):
                yield events
            if last:
                return
            with self._wake:
                self._wake.wait_for(lambda: self._closing, EVERY)


def read_portion(file: BinaryIO) -> list[Event]:
    """Read the next events of an open metrics.jsonl, MOST at most; a line without an end is left for the next time."""
    events: list[Event] = []
    while len(events) < MOST:
        place = file.tell()
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(place)
            break
        event = parse_line(line)
        if event and is_event(event) and "time" in event:  # else it was cut by a crash, or is damaged
            events.append(event)
    return events


def close(outboxes: Sequence[Outbox], say: Callable[[str], None], seconds: float) -> None:
    """End all of them, in so many seconds together: a server that is down must not hold the GPUs of an ended run."""
    for one in outboxes:
        one.finish()
    end = time.monotonic() + seconds
    for one in outboxes:
        if not one.join(end - time.monotonic()):
            say(f"{one.name} took not all numbers within {seconds:.0f} s")


def reason(error: Exception) -> str:
    """Return an error in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
