"""Limit how many ranks train at once over all tests of this machine to what its cores can run.

A file says by `pytest.mark.ranks(n)` how many it has at a time, and holds as many slots while its tests run, and so do
those of this run's other workers and of other runs. Slots are locks on files, which end with their process, however
that ends.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

PER_CORE = 4
FOLDER = Path(tempfile.gettempdir()) / f"trainyard-ranks-{os.getuid()}"


def capacity() -> int:
    """Return how many ranks may train at once."""
    return PER_CORE * (os.cpu_count() or 1)


def take(number: int) -> list[TextIO]:
    """Lock one slot after another until there are enough, whatever others hold."""
    held: list[TextIO] = []
    while len(held) < number:
        for slot in range(capacity()):
            file = (FOLDER / str(slot)).open("a")
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
def slots(number: int) -> Iterator[None]:
    """Hold slots for so many ranks; a request for more than exist gets all."""
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as stack:
        with (FOLDER / "queue").open("a") as queue:  # one after the other: two that each hold a half would wait forever
            fcntl.flock(queue, fcntl.LOCK_EX)
            for file in take(min(number, capacity())):
                stack.enter_context(file)
        yield
