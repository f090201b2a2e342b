"""DDP and FSDP through a real process group (NCCL; gloo without a GPU) of one process: losses, checkpoint, resume."""

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu import training
from benchmarks.gpu.part import Part, main
from trainyard import config
from trainyard.parallel.base import Strategy
from trainyard.parallel.device import prepare_device
from trainyard.parallel.environment import Place

BOUND, BOUND_16 = 0.02, 0.05  # distance to the losses without a group (training.apart), in fp32 and in 16 bits


def ddp(chosen: config.Config) -> Strategy:
    """DDP, as two processes would have it."""
    from trainyard.parallel.ddp import Ddp

    return Ddp(joined(), device_of(chosen), chosen.comm, chosen.ddp)


def fsdp(chosen: config.Config) -> Strategy:
    """FSDP, as two processes would have it."""
    from trainyard.parallel.fsdp import Fsdp

    options, device = chosen.model.compile_options, device_of(chosen)
    return Fsdp(joined(), device, chosen.comm, chosen.fsdp, precision=chosen.precision, compile_options=options)


def device_of(chosen: config.Config) -> torch.device:
    """Prepare the device, as a run does."""
    how = {"deterministic": chosen.deterministic, "bind_cores": chosen.host.numa}
    return prepare_device(chosen.device, chosen.precision, Place(), **how)


def joined() -> Place:
    """Return a world of one, whose store takes any port that is free."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="0")  # fmt: skip
    return Place()


CASES: dict[str, tuple[str, Callable[[config.Config], Strategy], dict[str, Any]]] = {
    "ddp": ("ddp", ddp, {}),
    "fsdp": ("fsdp", fsdp, {}),
    "ddp, compressed": ("ddp", ddp, {"comm__compression": "bf16"}),
    "ddp, bf16": ("ddp", ddp, {"precision": "bf16"}),
    "fsdp, bf16": ("fsdp", fsdp, {"precision": "bf16"}),
    "ddp, fp16": ("ddp", ddp, {"precision": "fp16"}),
    "fsdp, fp16": ("fsdp", fsdp, {"precision": "fp16"}),
}


def work(part: Part) -> None:
    """Without a group, then with each."""
    steps = 20 if part.gpu else 6
    base = training.train(settings(part, "alone", steps)).losses
    backend = "nccl" if part.gpu else "gloo"
    for name, (kind, strategy, over) in CASES.items():
        if over.get("precision") == "fp16" and part.needs_gpu(f"{name} over {backend}"):
            continue
        if part.lacks_bf16(f"{name} over {backend}", over.get("precision", "fp32")):
            continue
        with part.guarded(name):
            whole = training.train(settings(part, name, steps, strategy=kind, **over), strategy).losses
            distance, bound = training.apart(whole, base), BOUND_16 if over else BOUND
            text = f"losses {distance:.2%} from those without a group in fp32 (at most {bound:.0%})"
            ended = not dist.is_initialized()
            part.check(f"{name} over {backend}", ended, text, bounds={"distance": (None, bound)}, distance=distance)
            if not over:
                resumed(part, name, strategy, whole, steps)


def resumed(
    part: Part, name: str, strategy: Callable[[config.Config], Strategy], whole: list[float], steps: int
) -> None:
    """Resume from the checkpoint in the middle; the rest of the losses must be those of the run before."""
    run = part.folder / name.replace(", ", "-")
    (run / "summary.json").unlink()
    for checkpoint in (run / "checkpoints").glob("step-*"):
        if int(checkpoint.name.removeprefix("step-")) > steps // 2:
            shutil.rmtree(checkpoint)
    rest = training.train(settings(part, name, steps, strategy=name), strategy).losses
    distance = training.apart(rest, whole[steps // 2 :])
    text = f"{len(rest)} steps, losses {distance:.2%} from the undisturbed (at most {BOUND:.0%})"
    right = len(rest) == steps - steps // 2
    part.check(f"{name}, resumed", right, text, bounds={"distance": (None, BOUND)}, distance=distance)


def settings(part: Part, name: str, steps: int, **over: Any) -> training.Tree:
    """Return a short run with a checkpoint in the middle."""
    return training.settings(
        part.folder / name.replace(", ", "-"), part.device, max_steps=steps, checkpoint__every_steps=steps // 2, **over
    )


if __name__ == "__main__":
    main(work)
