"""The trainer, in which one named point of its life fails: `python -m faulty`, started as `-m trainers.ddp` is.

FAULT="POINT ACTION RANK HIT" names the point, what happens there, on which rank, and at the how manieth time it is
reached; FAULT_UNDER=horovod starts it as `-m trainers.hvd` is. The code that runs is the trainers' own: a point is the
begin or the end of one of its functions, which is wrapped before the program starts, so that nothing in the trainers
knows of it.
"""

import errno
import functools
import importlib
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

BEFORE, AFTER = "before", "after"
LOOP, TRAINER = "trainyard.training.loop", "trainyard.training.trainer"
DIRECTORY, WRITER = "trainyard.run.directory", "trainyard.run.checkpoint_writer"

# Every point of a run's life, in order: the function, as its caller finds it, and its begin or end. FIRST are reached
# by rank 0 alone, LATER only by a start that resumes, STEPWISE in each step.
POINTS = {
    "counting": ("trainyard.run.starts", "count", BEFORE),
    "counted": ("trainyard.run.starts", "count", AFTER),
    "connecting": ("trainyard.parallel", "connect", BEFORE),
    "connected": ("trainyard.parallel", "connect", AFTER),
    "opening": ("trainyard.training.trainer", "open_data", BEFORE),
    "opened": ("trainyard.training.trainer", "open_data", AFTER),
    "entering": (DIRECTORY, "RunDirectory.enter", BEFORE),
    "leased": ("trainyard.run.lease", "Lease.take", AFTER),
    "entered": (DIRECTORY, "RunDirectory.enter", AFTER),
    "found": (DIRECTORY, "RunDirectory.find_checkpoint", AFTER),
    "modelling": ("trainyard.training.trainer", "build_learner", BEFORE),
    "built": (LOOP, "build", AFTER),
    "begun": (LOOP, "resume", AFTER),
    "reading": ("trainyard.shards.reader", "Shards.read_together", BEFORE),
    "step": (LOOP, "train_step", BEFORE),
    "forward": (LOOP, "loss_of", AFTER),
    "updating": (LOOP, "optimizers.set_learning_rate", BEFORE),
    "stepped": (LOOP, "train_step", AFTER),
    "flushed": (LOOP, "flush", AFTER),
    "saving": (LOOP, "save", BEFORE),
    "copied": (WRITER, "write", BEFORE),
    "written": ("trainyard.run.tensor_file", "Buffer.write", AFTER),
    "described": ("trainyard.run.fence", "publish_folder", BEFORE),
    "renamed": ("trainyard.run.checkpoint", "_write", AFTER),
    "pruning": (WRITER, "prune", BEFORE),
    "loading": (TRAINER, "load", BEFORE),
    "loaded": (TRAINER, "load", AFTER),
    "validating": (LOOP, "evaluate", BEFORE),
    "validated": (LOOP, "validate", AFTER),
    "finishing": (LOOP, "finish", BEFORE),
    "publishing": ("trainyard.run.publishing", "publish", BEFORE),
    "published": ("trainyard.run.publishing", "publish", AFTER),
    "reported": ("trainyard.report", "write", AFTER),
    "summarized": ("trainyard.run.recorder", "Recorder.summarize", AFTER),
    "released": ("trainyard.run.lease", "Lease.release", AFTER),
    "leaving": (LOOP, "leave", BEFORE),
    "left": (LOOP, "leave", AFTER),
}
FIRST = {
    "counting", "counted", "entering", "leased", "entered", "found", "copied", "written", "described", "renamed",
    "pruning", "publishing", "published", "reported", "summarized", "released",
}  # fmt: skip
LATER = {"loading", "loaded"}
STEPWISE = {"reading", "step", "forward", "updating", "stepped", "flushed"}
RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")  # what torchrun, horovodrun and mpirun set


# Errors of a GPU and of NCCL, as torch raises them: the class, the text, the exit code
ERRORS = {
    "cuda": ("torch.AcceleratorError", "CUDA error: uncorrectable ECC error encountered", 201),
    "launch": ("torch.AcceleratorError", "CUDA error: unspecified launch failure", 201),
    "cublas": (
        "builtins.RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", 201
    ),
    "cudnn": ("builtins.RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", 201),
    "nccl": (
        "torch.distributed.DistBackendError",
        "NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error", 138,
    ),
    "system": (
        "torch.distributed.DistBackendError", "NCCL error in: NCCLUtils.cpp:94, ncclSystemError: System call", 138
    ),
    "aborted": ("builtins.RuntimeError", "NCCL communicator was aborted on rank 0.", 138),
    "late": ("torch.distributed.DistNetworkError", "The client socket has timed out after 60000ms", 138),
    "memory": (
        "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines", 2
    ),
    "pinned": ("trainyard.core.exits.HostMemoryError", "pinned memory: CUDA error: out of memory", 2),
    "workspace": (
        "builtins.RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", 2
    ),
    "unfit": (
        "torch.AcceleratorError", "CUDA error: no kernel image is available for execution on the device", 2
    ),
    "random": (
        "builtins.RuntimeError", "adaptive_max_pool2d_backward_cuda does not have a deterministic implementation", 2
    ),
    "assertion": ("torch.AcceleratorError", "CUDA error: device-side assert triggered", 1),
    "usage": (
        "torch.distributed.DistBackendError", "NCCL error in: NCCLUtils.cpp:77, ncclInvalidUsage: invalid usage", 1
    ),
}  # fmt: skip


def fail(kind: str) -> None:
    """Raise an error of ERRORS; torch may not be loaded yet."""
    name, text, _ = ERRORS[kind]
    module, _, kind = name.rpartition(".")
    raise getattr(importlib.import_module(module), kind)(text)


def stale() -> None:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/results/file")


def bug() -> None:
    raise ValueError("the code has a fault")


ACTIONS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    **{kind: functools.partial(fail, kind) for kind in ERRORS}, "stale": stale, "bug": bug,
}  # fmt: skip
CODES = {"kill": -9, "term": 143, "stale": 200, **{kind: code for kind, (_, _, code) in ERRORS.items()}}


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
    from trainyard.core.exits import guarded
    from trainyard.training import command

    if os.environ.get("FAULT"):
        install(*os.environ["FAULT"].split())
    under = os.environ.get("FAULT_UNDER", "ddp")
    module = {"ddp": "trainers.ddp", "horovod": "trainers.hvd"}[under]
    guarded(lambda: command.main(module, under, "the trainer, with a fault"))
