"""Sets up torch.compile for a run, and decides which forwards run without the compiler.

These are the smaller batches at the end of an epoch or a validation.
torch.compile builds a program for each shape that it sees, which takes a minute for a large model. The last batch of an
epoch is smaller, and may be another size on each process. It is not left out, so that every sample is seen once, and
not padded, since padding would enter BatchNorm's statistics: it runs without the compiler, once per epoch.

Where images grow with the epochs (data.size_start), each size has a program, built in the size's first step.
"""

import contextlib
import getpass
import importlib
import os
from pathlib import Path
from typing import Any

import torch

from trainyard.config import RunPlan
from trainyard.config.sections.learning import ModelSettings
from trainyard.config.sections.running import RunSettings
from trainyard.data.sampler import Order
from trainyard.run.directory import COMPILED

PROGRAMS = 8  # of a piece of code: torch's own limit
# The oldest torch that was seen to cut a graph with checkpointed blocks
CUTS_CHECKPOINTED = (2, 15)


def prepare_compiler(model: ModelSettings, run: RunSettings, units: int, *, sizes: int) -> None:
    """Set what torch.compile needs for a model, or for `units` parts of it, and so many sizes of images."""
    name_user()
    if model.compile_cache:
        keep_programs(Path(run.dir))
    allow_programs(max(PROGRAMS, 2 * units) * sizes)  # a part has one for training and one for validation
    if model.checkpointing:
        keep_graphs_whole(torch.__version__)


def forward_sizes(order: Order, plan: RunPlan, rank: int, world: int) -> frozenset[int]:
    """How many samples the forwards of one process take in a whole step; two numbers where they don't divide evenly."""
    parts = order.parts(len(order.slice(0, rank, world)), plan.forwards)
    return frozenset(part.stop - part.start for part in parts)


def compiled_or_eager(compiles: bool, size: int, whole: frozenset[int]) -> contextlib.AbstractContextManager[None]:
    """To be entered for a forward of `size` samples; `whole` are the sizes that a program is built for.

    None is built for a forward without samples, which some processes have in each step where a batch does not divide.
    `compiles`: whether the model is compiled.
    """
    if not compiles:
        return contextlib.nullcontext()
    if size not in whole or not size:
        stance: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return stance
    # what the last replay of a CUDA graph returned is no longer needed
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
    return contextlib.nullcontext()


def allow_programs(count: int, dynamo: Any = None) -> None:
    """Let torch.compile keep so many programs of one function; what comes after them would run without the compiler.

    Torch keeps 8. All compiled modules are called by the same function, and ResNet-50's 16 blocks have 8 shapes; each
    size of images is a program, too. `dynamo`: another torch's settings, in place of this one's.
    """
    if dynamo is None:
        dynamo = importlib.import_module("torch._dynamo.config")
    name = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"  # before torch 2.7
    setattr(dynamo, name, max(count, getattr(dynamo, name)))


def keep_graphs_whole(torch_version: str) -> None:
    """Have DDP not cut compiled graphs at its buckets, in a torch that cannot do so with gradient checkpointing.

    Older ones raise "Found a higher order op in the graph" there. Gradients are then sent after the whole backward.
    """
    if version_of(torch_version) < CUTS_CHECKPOINTED:
        from torch._dynamo import config as dynamo

        dynamo.optimize_ddp = False


def version_of(torch_version: str) -> tuple[int, int]:
    """Major and minor number of a version of torch."""
    major, minor = torch_version.split(".")[:2]
    return int(major), int(minor)


def keep_programs(run: Path) -> None:
    """Have torch keep what it compiles in a run directory, where the next start finds it.

    Torch names the files by what they are made of (graph, torch, GPU) and renames them into place, so several nodes may
    share the folder, and what does not fit is not found.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((run / COMPILED).absolute())
    os.environ["TRITON_CACHE_DIR"] = str((run / COMPILED / "triton").absolute())


def name_user() -> None:
    """Give a user without an entry in /etc/passwd a name; torch before 2.13 ends where it names its cache after one."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = f"uid-{os.getuid()}"
