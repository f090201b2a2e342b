"""The trainer, in which one named point of its life fails: `python -m faulty`, started as `-m trainers.ddp` is.

FAULT="POINT ACTION RANK HIT" names the point, what happens there, on which rank, and at the how manieth time it is
reached; FAULT_UNDER=horovod starts it as `-m trainers.hvd` is. The code that runs is the trainers' own: a point is the
begin or the end of one of its functions, which is wrapped before the program starts, so that nothing in the trainers
knows of it.
"""

import errno
import importlib
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

BEFORE, AFTER = "before", "after"
LOOP, DIRECTORY, WRITER = "trainers.training.loop", "trainers.run.directory", "trainers.run.checkpoint_writer"

# Every point of a run's life, in order: the function, as its caller finds it, and its begin or end. FIRST are reached
# by rank 0 alone, LATER only by a start that resumes, STEPWISE in each step.
POINTS = {
    "counting": ("trainers.run.starts", "count", BEFORE),
    "counted": ("trainers.run.starts", "count", AFTER),
    "connecting": ("trainers.parallel", "connect", BEFORE),
    "connected": ("trainers.parallel", "connect", AFTER),
    "opening": ("trainers.training.trainer", "open_data", BEFORE),
    "opened": ("trainers.training.trainer", "open_data", AFTER),
    "entering": (DIRECTORY, "RunDirectory.enter", BEFORE),
    "leased": ("trainers.run.lease", "Lease.take", AFTER),
    "entered": (DIRECTORY, "RunDirectory.enter", AFTER),
    "found": (DIRECTORY, "RunDirectory.find_checkpoint", AFTER),
    "modelling": ("trainers.training.trainer", "build_learner", BEFORE),
    "built": (LOOP, "build", AFTER),
    "begun": (LOOP, "resume", AFTER),
    "reading": ("trainers.shards.reader", "Shards.read_together", BEFORE),
    "step": (LOOP, "train_step", BEFORE),
    "forward": (LOOP, "loss_of", AFTER),
    "updating": (LOOP, "schedule.set_learning_rate", BEFORE),
    "stepped": (LOOP, "train_step", AFTER),
    "flushed": (LOOP, "flush", AFTER),
    "saving": (LOOP, "save", BEFORE),
    "copied": (WRITER, "write", BEFORE),
    "written": ("trainers.run.tensor_file", "Buffer.write", AFTER),
    "described": ("trainers.run.checkpoint", "write_json", AFTER),
    "renamed": ("trainers.run.checkpoint", "_write", AFTER),
    "pruning": (WRITER, "prune", BEFORE),
    "loading": (LOOP, "load", BEFORE),
    "loaded": (LOOP, "load", AFTER),
    "validating": (LOOP, "evaluate", BEFORE),
    "validated": (LOOP, "validate", AFTER),
    "finishing": (LOOP, "finish", BEFORE),
    "publishing": ("trainers.run.publish", "publish", BEFORE),
    "published": ("trainers.run.publish", "publish", AFTER),
    "summarized": ("trainers.run.recorder", "Recorder.summarize", AFTER),
    "reported": ("trainers.report", "write", AFTER),
    "released": ("trainers.run.lease", "Lease.release", AFTER),
    "leaving": (LOOP, "leave", BEFORE),
    "left": (LOOP, "leave", AFTER),
}
FIRST = {
    "counting", "counted", "entering", "leased", "entered", "found", "copied", "written", "described", "renamed",
    "pruning", "publishing", "published", "summarized", "reported", "released",
}  # fmt: skip
LATER = {"loading", "loaded"}
STEPWISE = {"reading", "step", "forward", "updating", "stepped", "flushed"}
RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")  # what torchrun, horovodrun and mpirun set


def cuda() -> None:
    import torch

    raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")


def memory() -> None:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines")


def nccl() -> None:
    import torch.distributed as dist

    raise dist.DistBackendError("NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error")


def stale() -> None:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/results/file")


def bug() -> None:
    raise ValueError("the code has a fault")


ACTIONS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "cuda": cuda, "memory": memory, "nccl": nccl, "stale": stale, "bug": bug,
}  # fmt: skip
CODES = {"kill": -9, "cuda": 201, "memory": 2, "nccl": 138, "stale": 200}


def install(point: str, action: str, rank: str = "0", hit: str = "1") -> None:
    """Make a point fail, if this is the rank."""
    if rank != next((os.environ[name] for name in RANK if name in os.environ), "0"):
        return
    module, path, when = POINTS[point]
    owner: Any = importlib.import_module(module)
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    original, count = getattr(owner, name), itertools.count(1)

    def reach() -> None:
        if next(count) == int(hit):
            ACTIONS[action]()

    def wrapped(*arguments: Any, **options: Any) -> Any:
        if when == BEFORE:
            reach()
        result = original(*arguments, **options)
        if when == AFTER:
            reach()
        return result

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    from trainers.exits import guarded
    from trainers.training import command

    if os.environ.get("FAULT"):
        install(*os.environ["FAULT"].split())
    under = os.environ.get("FAULT_UNDER", "ddp")
    module = {"ddp": "trainers.ddp", "horovod": "trainers.hvd"}[under]
    guarded(lambda: command.main(module, under, "the trainer, with a fault"))
