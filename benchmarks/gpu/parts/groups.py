"""DDP and FSDP through a real process group (NCCL; gloo without a GPU) of one process: losses, checkpoint, resume."""

import os
import shutil
import socket

import torch.distributed as dist

from benchmarks.gpu import training
from benchmarks.gpu.part import Part, main
from trainyard import config
from trainyard.parallel.base import Strategy
from trainyard.parallel.device import choose_device
from trainyard.parallel.environment import Place

BOUND = 0.02  # mean distance to the losses without a group, as a share of these


def ddp(chosen: config.Config) -> Strategy:
    """DDP, as two processes would have it."""
    from trainyard.parallel.ddp import Ddp

    return Ddp(joined(), choose_device(chosen.device, Place()), chosen.comm, chosen.ddp)


def fsdp(chosen: config.Config) -> Strategy:
    """FSDP, as two processes would have it."""
    from trainyard.parallel.fsdp import Fsdp

    options, device = chosen.model.compile_options, choose_device(chosen.device, Place())
    return Fsdp(joined(), device, chosen.comm, chosen.fsdp, precision=chosen.precision, compile_options=options)


def joined() -> Place:
    """Return a world of one, with a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))  # fmt: skip
    return Place()


def work(part: Part) -> None:
    """Without a group, then with each."""
    steps = 20 if part.gpu else 6
    base = training.train(settings(part, "alone", steps)).losses
    for name, strategy in (("ddp", ddp), ("fsdp", fsdp)):
        with part.guarded(name):
            whole = training.train(settings(part, name, steps, strategy=name), strategy).losses
            distance = apart(whole, base)
            backend = "nccl" if part.gpu else "gloo"
            right = distance <= BOUND and not dist.is_initialized()
            part.check(
                f"{name} over {backend}",
                right,
                f"losses {distance:.2%} from those without a group (at most {BOUND:.0%})",
            )
            resumed(part, name, strategy, whole, steps)


def resumed(
    part: Part, name: str, strategy: training.Callable[[config.Config], Strategy], whole: list[float], steps: int
) -> None:
    """Resume from the checkpoint in the middle; the rest of the losses must be those of the run before."""
    run = part.folder / name
    (run / "summary.json").unlink()
    for checkpoint in (run / "checkpoints").glob("step-*"):
        if int(checkpoint.name.removeprefix("step-")) > steps // 2:
            shutil.rmtree(checkpoint)
    rest = training.train(settings(part, name, steps, strategy=name), strategy).losses
    distance = apart(rest, whole[steps // 2 :])
    right = len(rest) == steps - steps // 2 and distance <= BOUND
    part.check(
        f"{name}, resumed",
        right,
        f"{len(rest)} steps, losses {distance:.2%} from the undisturbed (at most {BOUND:.0%})",
    )


def settings(part: Part, name: str, steps: int, **over: str) -> training.Tree:
    """Return a short run with a checkpoint in the middle."""
    return training.settings(
        part.folder / name, part.device, max_steps=steps, checkpoint__every_steps=steps // 2, **over
    )


def apart(some: list[float], others: list[float]) -> float:
    """Mean distance of losses, as a share of the others."""
    return sum(abs(a - b) / abs(b) for a, b in zip(some, others, strict=True)) / max(len(others), 1)


if __name__ == "__main__":
    main(work)
