"""Python's garbage collection: none while torch is imported, and then at chosen steps.

Left alone it stops each process at another moment, for tens of milliseconds with torch loaded, and in each step all
processes wait for the slowest: with N of them almost every step has one. Torchtitan collects at chosen steps, too.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collect nothing within this context, and never look at what it leaves.

    For imports: a rank's take 1.6 s of CPU time with collections, which find nothing, and 1.4 s without.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


@contextlib.contextmanager
def at_steps(every: int) -> Iterator[None]:
    """Within this context `collect` decides, every so many steps; 0 leaves it to Python.

    What is there at the begin stays for the run, and is not looked at again.
    """
    if not every:
        yield
        return
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def collect(step: int, every: int) -> None:
    """Collect garbage if `step` is one of the chosen steps."""
    if every and step % every == 0:
        gc.collect()
