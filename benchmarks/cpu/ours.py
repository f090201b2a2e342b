"""The trainers' own loader and loop, as benchmarks use them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard import config, parallel
from trainyard.data.loader import Batch, Loader
from trainyard.data.sampler import Order
from trainyard.data.splits import open_splits
from trainyard.training import loop
from trainyard.training.trainer import Trainer, build

ROOT = Path(__file__).parents[2]


def open_loader(folder: Path, batch: int, augment: Mapping[str, Any], **data: Any) -> Loader:
    """Return the training split's loader of a prepared dataset, for global batches of so many pictures."""
    settings = {"epochs": 1, "batch": {"global": batch}, "model": {"channels_last": True}, "augment": augment}
    built = config.build({**settings, "data": {"dir": str(folder), **data}})
    return open_splits(built.data, built.augment, built.model, built.seed, local_world=1, pin=False).train


def batches(loader: Loader, batch: int) -> Iterator[Batch]:
    """Batches in the order that training would take, without end."""
    order = Order(len(loader.labels), batch, 1)
    return loader.batches((order.epoch(step), order.slice(step, 0, 1)) for step in range(10**6))


def resumed(**settings: Any) -> Trainer:
    """Connect this process to the others, and return a trainer that is ready for its first step."""
    built = config.build(settings)
    place = parallel.locate("ddp")
    plan = config.make_plan(built, "ddp", place.world)
    trainer = build(built, plan, parallel.connect(built, plan, place))
    loop.resume(trainer)
    return trainer


def leave(trainer: Trainer) -> None:
    """End this process once all others have come as far."""
    trainer.strategy.barrier()
    sys.stdout.flush()
    os._exit(0)


def launch(program: str, world: int, *options: str) -> None:
    """Run a program on so many processes; where they fail, end with their output."""
    launcher = ["-m", "trainyard", "launch", "--nproc-per-node", str(world)] if world > 1 else []
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, program, *options], env=environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{done.stdout}\nthe benchmark's processes failed")
