"""Limit how many ranks train at once over all tests of this machine to what its cores can run.

A file says by `pytest.mark.ranks(n)` how many it has at a time, and holds as many slots while its tests run, and so do
those of this run's other workers and of other runs. Slots are locks on files, which end with their process, however
that ends. Ranks in pods have slots of their own: their tests mostly wait, and others would wait for them on idle cores.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

PER_CORE = {"pods": 4, "processes": 3}
FOLDER = Path(tempfile.gettempdir()) / f"trainyard-ranks-{os.getuid()}"


def capacity(kind: str) -> int:
    """Return how many ranks of a kind, `pods` or `processes`, may train at once."""
    return PER_CORE[kind] * (os.cpu_count() or 1)


def take(number: int, kind: str) -> list[TextIO]:
    """Lock one slot after another until there are enough, whatever others hold."""
    held: list[TextIO] = []
    while len(held) < number:
        for slot in range(capacity(kind)):
            file = (FOLDER / f"{kind}-{slot}").open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            held.append(file)
            if len(held) == number:
                return held
        time.sleep(0.2)
    return held


@contextmanager
def slots(number: int, kind: str = "processes") -> Iterator[None]:
    """Hold slots for so many ranks of a kind; a request for more than exist gets all."""
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as stack:
        # one after the other: two that each hold a half would wait forever
        with (FOLDER / f"{kind}-queue").open("a") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            for file in take(min(number, capacity(kind)), kind):
                stack.enter_context(file)
        yield
