"""Retries after failures that may pass: a bounded number, with growing pauses, resuming where the last answer ended."""

import email.utils
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainyard.core.exits import Exit, ExitError
from trainyard.prepare.sources.base import Traffic


@dataclass(frozen=True)
class Patience:
    """How often to retry without progress, and the pauses between tries, in seconds."""

    tries: int = 8
    first_pause: float = 0.5
    longest_pause: float = 30.0
    timeout: tuple[float, float] = (10.0, 60.0)

    def pause(self, failures: int, asked: str | None) -> float:
        """Return the seconds to wait after so many failures in a row; `asked` is the server's Retry-After."""
        # Spread out, so that many connections do not come back at the same moment
        pause = min(self.first_pause * 2.0 ** (failures - 1), self.longest_pause) * random.uniform(0.5, 1.0)
        return max(pause, min(_seconds(asked), 2 * self.longest_pause))


class PassingError(Exception):
    """A failure that may have passed at the next try. `wait` is the server's Retry-After, in seconds."""

    def __init__(self, cause: str, wait: str | None = None) -> None:
        super().__init__(cause)
        self.wait = wait


class Retries:
    """Resumes reading after failures that may pass, until one lasts."""

    def __init__(self, label: str, traffic: Traffic, patience: Patience) -> None:
        self._label = label
        self._traffic = traffic
        self._patience = patience
        self._stopped = threading.Event()

    def fill(self, offset: int, buffer: memoryview, ask: Callable[[int, int], Iterator[bytes]]) -> None:
        """Fill the buffer by asking for what is left of it; `ask(offset, length)` yields bytes or raises PassingError.

        It yields no more than it was asked for.
        """
        done = failures = 0
        while done < len(buffer):
            before = done
            try:
                for chunk in ask(offset + done, len(buffer) - done):
                    buffer[done : done + len(chunk)] = chunk
                    done += len(chunk)
                    self._traffic.add(received=len(chunk))
                if done == before:
                    raise PassingError("the answer was empty")
            except PassingError as error:
                failures = 1 if done > before else failures + 1
                self.wait_or_give_up(error, failures)

    def wait_or_give_up(self, error: PassingError, failures: int) -> None:
        """Wait before the next try; raises ExitError after too many."""
        self._traffic.retry(str(error))
        if failures >= self._patience.tries or self._stopped.is_set():
            raise ExitError(
                f"{self._label} could not be read: {error}, {failures} times in a row; check the network and the "
                "server, then run the same command again: finished shards are kept",
                Exit.FAILED,
            )
        self._stopped.wait(self._patience.pause(failures, error.wait))

    def stop(self) -> None:
        """Give up at the next failure."""
        self._stopped.set()


def _seconds(asked: str | None) -> float:
    """Read a Retry-After header: seconds, or a date."""
    if not asked:
        return 0.0
    if asked.isascii() and asked.isdigit():
        return float(asked)
    try:
        return email.utils.parsedate_to_datetime(asked).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):  # whatever a server may write there
        return 0.0
