"""Real runs of the trainers inside a part's process: the whole loop, watched for losses and for waits for the GPU."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainyard import config, parallel
from trainyard.config import layers
from trainyard.parallel.base import Strategy
from trainyard.training import loop

SYNCHRONISING = "called a synchronizing"  # torch's words in set_sync_debug_mode("warn")
WATCHED = ("train_step", "flush", "evaluate", "save")  # functions of the loop in which no batch may wait for the GPU
COMPARED = 10  # steps whose losses are compared: later ones are near 0, and each rounding has grown
Tree = dict[str, Any]


@dataclass
class Seen:
    """What a run did: the loss of each step, and how often each watched function made the host wait for the GPU."""

    losses: list[float] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WATCHED, 0))
    waits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WATCHED, 0))
    places: list[str] = field(default_factory=list)

    def finite(self) -> bool:
        """Whether every loss is a number."""
        return bool(self.losses) and all(map(torch.isfinite, map(torch.tensor, self.losses)))


def settings(folder: Path, device: str, **over: Any) -> Tree:
    """Get settings of a short run on generated pictures; `over` replaces keys, `model__name` stands for model.name."""
    gpu = device == "cuda"
    tree: Tree = {
        "run": {"dir": str(folder)}, "device": device, "wandb": {"mode": "off"}, "max_steps": 50 if gpu else 8,
        "batch": {"global": 64 if gpu else 8}, "log": {"every_steps": 10},
        "model": {"name": "torchvision:resnet18" if gpu else "benchmarks.gpu.models:little", "num_classes": 10},
        "data": {"dir": "synthetic", "image_size": 224 if gpu else 32, "synthetic_samples": 640 if gpu else 64,
                 "workers": 4 if gpu else 1},
        "schedule": {"name": "constant", "warmup_epochs": 0.0}, "optimizer": {"lr": 0.002, "lr_batch": 64},
        "checkpoint": {"every_steps": 20 if gpu else 4}, "validate": {"every_epochs": 0, "batch": 32 if gpu else 4},
    }  # fmt: skip
    for key, value in over.items():
        tree = layers.overlay(tree, layers.nest(key.replace("__", "."), value))
    return tree


def train(tree: Tree, strategy: Callable[[config.Config], Strategy] | None = None) -> Seen:
    """Run to the end as `trainers.ddp` would, on one process; with a strategy that one process would not get."""
    chosen, seen = config.build(tree), Seen()
    place = parallel.locate("ddp") if strategy is None else parallel.environment.Place()
    plan = config.make_plan(chosen, "ddp", 1)
    kept: list[torch.Tensor] = []
    watched = watching(seen, kept, chosen.device == "cuda", chosen.model.compile)
    with watched, connecting(strategy):
        loop.run(chosen, plan, place)
    seen.losses = torch.stack(kept).double().cpu().tolist() if kept else []
    return seen


def apart(some: list[float], others: list[float]) -> float:
    """Distance of the first losses of two runs, as a share of the others' sum."""
    pairs = list(zip(some, others, strict=True))[:COMPARED]
    return sum(abs(a - b) for a, b in pairs) / max(sum(abs(b) for _, b in pairs), 1e-9)


@contextlib.contextmanager
def connecting(strategy: Callable[[config.Config], Strategy] | None) -> Iterator[None]:
    """Within this, a run of one process gets the given strategy."""
    original = parallel.connect
    if strategy is not None:
        parallel.connect = lambda chosen, plan, place: strategy(chosen)
    try:
        yield
    finally:
        parallel.connect = original


@contextlib.contextmanager
def watching(seen: Seen, losses: list[torch.Tensor], gpu: bool, compiled: bool) -> Iterator[None]:
    """Within this, the loop's functions are watched, and the steps' losses kept on their device.

    First calls are not, which tune and allocate: of steps two, and of a validation one where it compiles.
    """
    unwatched = {"train_step": 2, "evaluate": int(compiled)}
    originals = {name: getattr(loop, name) for name in WATCHED}

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with waits(seen, name, gpu and seen.calls[name] >= unwatched.get(name, 0)):
                result = originals[name](*arguments, **options)
            if name == "train_step":
                losses.append(result.detach())
            return result

        return call

    for name in WATCHED:
        setattr(loop, name, wrapped(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(loop, name, original)


@contextlib.contextmanager
def waits(seen: Seen, name: str, watched: bool) -> Iterator[None]:
    """Count how often the block makes the host wait for the GPU, if it is watched."""
    seen.calls[name] += 1
    if not watched:
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=f".*{SYNCHRONISING}")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found = [warning for warning in caught if SYNCHRONISING in str(warning.message)]
    seen.waits[name] += len(found)
    seen.places += [f"{name}: {Path(warning.filename).name}:{warning.lineno}" for warning in found]
