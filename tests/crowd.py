"""Threads that share a budget of pixels: each keeps its part until all others wait for theirs."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tests import patience
from trainyard.data import limits


class Crowd(limits.Budget):
    """A budget of two parts for so many threads, which do so many pieces of work; and the most that they held."""

    def __init__(self, part: int, threads: int = 8, pieces: int = 24) -> None:
        super().__init__(2 * part)
        self.most = 0
        self._part, self._waiting, self._pieces = part, threads - 2, pieces
        self._asked = self._begun = self._held = 0
        self._seen = threading.Condition()

    def taking(self, amount: int) -> AbstractContextManager[None]:
        """Count who asks for a part."""
        with self._seen:
            self._asked += 1
            self._seen.notify_all()
        return super().taking(amount)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold a part while the block runs, which begins when all others have asked, the first time two at once."""
        with self._seen:
            self._begun += 1
            self._held += self._part
            self.most, number = max(self.most, self._held), self._begun
            self._seen.notify_all()
            others = min(self._pieces, number + self._waiting)
            met = self._seen.wait_for(lambda: self._asked >= others and self._begun > 1, patience.IDLE)
        try:
            assert met, "the others do not come"
            yield
        finally:
            with self._seen:
                self._held -= self._part
