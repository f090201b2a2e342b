"""The engine's own loop for a number of steps, timed: on generated pictures or on JPEGs, eager or compiled."""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.part import Part
from trainyard import config, parallel
from trainyard.training import loop
from trainyard.training.trainer import build

GIB = 1 << 30
LARGE = 36 * GIB  # of memory, which holds a step of 256 images


@dataclass(frozen=True)
class Job:
    """What is measured, and how long: steps that warm up, and steps that count."""

    device: torch.device
    model: str
    precision: str
    batch: int
    size: int
    warm: int
    steps: int
    pictures: int
    folder: Path


@dataclass(frozen=True)
class Found:
    """Images per second, the most memory in GiB, and where the engine's seconds went."""

    rate: float
    memory: float
    split: dict[str, float] = field(default_factory=dict)


def job_of(part: Part, steps: int = 100) -> Job:
    """ResNet-50 in 16 bits with 256 images a step, fewer where memory is small.

    Without a GPU it is something tiny, which measures nothing.
    """
    if part.gpu:
        batch = 256 if torch.cuda.get_device_properties(0).total_memory >= LARGE else 64
        precision = "bf16" if part.bf16 else "fp16"
        return Job(torch.device("cuda"), "resnet50", precision, batch, 224, 12, steps, 4096, part.folder)
    return Job(torch.device("cpu"), "resnet18", "fp32", 2, 32, 1, 1, 48, part.folder)


class Stopwatch:
    """Replaces the engine's watchdog: times its steps and makes any wait for the GPU within them an error."""

    def __init__(
        self, job: Job, clock: Any, begun: Callable[[], None], ended: Callable[[], None], strict: bool
    ) -> None:
        self.job, self.clock, self.begun, self.ended, self.strict = job, clock, begun, ended, strict
        self.first = self.seconds = 0.0
        self.split: dict[str, float] = {}

    def beat(self, what: str, step: int) -> None:
        """Begin and end the measurement at its steps; the engine calls this before each step."""
        if what != "step":
            return
        if step == self.job.warm:
            settle(self.job.device)
            self.split, self.first = self.clock.read(), time.perf_counter()
            self.begun()
            watch_waits(self.job.device, self.strict)
        if step == self.job.warm + self.job.steps:
            watch_waits(self.job.device, False)
            settle(self.job.device)
            self.seconds = time.perf_counter() - self.first
            self.ended()
            self.split = {key: value - self.split[key] for key, value in self.clock.read().items()}

    def close(self) -> None:
        """Nothing to end."""


def nothing() -> None:
    """Do nothing."""


def ours(
    job: Job,
    data: Path | None,
    compiled: bool,
    *,
    begun: Callable[[], None] = nothing,
    ended: Callable[[], None] = nothing,
    strict: bool = True,
) -> Found:
    """Return the engine's own loop; `begun` and `ended` are called around the steps that count."""
    steps = job.warm + job.steps + 1
    with tempfile.TemporaryDirectory(dir=job.folder) as name:
        settings = config.build(
            {
                "run": {"dir": name}, "max_steps": steps, "device": job.device.type, "wandb": {"mode": "off"},
                "precision": job.precision, "batch": {"global": job.batch}, "log": {"every_steps": 10},
                "data": {
                    "dir": str(data or "synthetic"), "image_size": job.size, "workers": workers(), "prefetch": 4,
                    "synthetic_samples": 64 * job.batch,
                },
                "model": {"name": job.model, "channels_last": True, "compile": compiled},
                "schedule": {"warmup_epochs": 0.0}, "checkpoint": {"every_steps": 0}, "comm": {"hang_seconds": 0.0},
                "validate": {"every_epochs": 0},
            }
        )  # fmt: skip
        place = parallel.locate("ddp")
        plan = config.make_plan(settings, "ddp", place.world)
        trainer = build(settings, plan, parallel.connect(settings, plan, place))
        loop.resume(trainer)
        trainer.records.watchdog.close()
        watch: Any = Stopwatch(job, trainer.records.clock, begun, ended, strict)
        trainer.progress.saved = steps  # nothing is saved at the end
        loop.train(replace(trainer, records=replace(trainer.records, watchdog=watch)))
        trainer.records.recorder.close()
    return Found(job.batch * job.steps / watch.seconds, memory(job.device), watch.split)


def step_of(job: Job, step: Callable[[], None]) -> Found:
    """Return a peer's step."""
    for _ in range(job.warm):
        step()
    settle(job.device)
    begin = time.perf_counter()
    for _ in range(job.steps):
        step()
    settle(job.device)
    return Found(job.batch * job.steps / (time.perf_counter() - begin), memory(job.device))


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def watch_waits(device: torch.device, on: bool) -> None:
    """Make every wait for the GPU an error, or allow it again."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error" if on else "default")


def memory(device: torch.device) -> float:
    """Peak memory on the GPU, in GiB."""
    return torch.cuda.max_memory_allocated() / GIB if device.type == "cuda" else 0.0


def workers() -> int:
    """Return decoding threads: all cores but one, which drives the GPU."""
    return max(1, len(os.sched_getaffinity(0)) - 1)
