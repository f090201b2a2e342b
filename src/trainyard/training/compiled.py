"""When a compiled model is called as it is written: for the smaller batches at the end of an epoch or a validation.

torch.compile builds a program for each shape that it sees, which takes a minute for a large model. The last batch of an
epoch is smaller, and may be another size on each process. It is not left out, so that every sample is seen once, and
not padded, since padding would enter BatchNorm's statistics: it runs without the compiler, once per epoch.
"""

import contextlib
import getpass
import os

import torch

from trainyard.config import RunPlan
from trainyard.data.sampler import Order


def sizes(order: Order, plan: RunPlan, rank: int, world: int) -> frozenset[int]:
    """How many samples the forwards of one process take in a whole step; two numbers where they don't divide evenly."""
    parts = order.parts(len(order.slice(0, rank, world)), plan.forwards)
    return frozenset(part.stop - part.start for part in parts)


def called_with(compiles: bool, size: int, whole: frozenset[int]) -> contextlib.AbstractContextManager[None]:
    """To be entered for a forward of `size` samples; `whole` are the sizes that a program is built for.

    `compiles`: whether the model is compiled.
    """
    if not compiles:
        return contextlib.nullcontext()
    if size not in whole:
        stance: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return stance
    # what the last replay of a CUDA graph returned is no longer needed
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
    return contextlib.nullcontext()


def name_user() -> None:
    """Give a user without an entry in /etc/passwd a name; torch before 2.13 ends where it names its cache after one."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = f"uid-{os.getuid()}"
