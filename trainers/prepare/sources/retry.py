"""How failures that may pass are borne: bounded tries with growing pauses, going on where the last answer broke off."""

import email.utils
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainers.exits import Exit, ExitError
from trainers.prepare.sources.base import Traffic


@dataclass(frozen=True)
class Patience:
    """How failures are borne: tries without any progress, and the pauses between them, in seconds."""

    tries: int = 8
    first_pause: float = 0.5
    longest_pause: float = 30.0
    timeout: tuple[float, float] = (10.0, 60.0)

    def pause(self, failures: int, asked: str | None) -> float:
        """Return how long to wait after so many failures in a row; the server's own wish counts, within bounds."""
        # Spread out, so that many connections do not come back at the same moment
        pause = min(self.first_pause * 2.0 ** (failures - 1), self.longest_pause) * random.uniform(0.5, 1.0)
        return max(pause, min(_seconds(asked), 2 * self.longest_pause))


class PassingError(Exception):
    """Something that may be gone at the next try. `wait` is what the server asked for."""

    def __init__(self, cause: str, wait: str | None = None) -> None:
        super().__init__(cause)
        self.wait = wait


class Retries:
    """Reads on after failures that may pass, until one lasts."""

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
            try:
                for chunk in ask(offset + done, len(buffer) - done):
                    buffer[done : done + len(chunk)] = chunk
                    done += len(chunk)
                    failures = 0
                    self._traffic.add(received=len(chunk))
            except PassingError as error:
                failures += 1
                self.bear(error, failures)

    def bear(self, error: PassingError, failures: int) -> None:
        """Wait before the next try, or give up."""
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
    if asked.isdigit():
        return float(asked)
    try:
        return email.utils.parsedate_to_datetime(asked).timestamp() - time.time()
    except ValueError:
        return 0.0
