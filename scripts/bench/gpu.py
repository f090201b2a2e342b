"""Training throughput of ResNet-50 in bf16 on one GPU, side by side with torchvision's and timm's training steps.

    python scripts/bench/gpu.py OUT.json [--batch 256] [--steps 60] [--rounds 2]     under 10 minutes, no network
    python scripts/bench/gpu.py OUT.json --device cpu --smoke     the same code in seconds, on ResNet-18, no figures

Ours is the engine's own loop with everything that belongs to it, on generated pictures and on JPEGs from prepared
shards, eager and compiled; the others compute on one batch that lies on the GPU. All take turns, in every round once.
The device is waited for only before the first and after the last step that counts. Within the engine's steps torch's
own check of synchronisation is on: a step that makes the processor wait for the GPU ends the benchmark.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
import gpu_peers  # noqa: E402
import gpu_pictures  # noqa: E402

RECORD = 7950  # img/s per H200, MLPerf Training v4.0, 8 GPUs
GIB = 1 << 30


@dataclass(frozen=True)
class Job:
    """What is measured, and how long."""

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
    """Images per second, the most memory in GiB, and where the engine's time went."""

    rate: float
    memory: float
    split: dict[str, float]


class Stopwatch:
    """Replaces the engine's watchdog: times its steps and lets torch check them for waits."""

    def __init__(self, job: Job) -> None:
        self.job, self.first, self.seconds = job, 0.0, 0.0
        self.before: dict[str, float] = {}
        self.clock: Any = None

    def beat(self, what: str, step: int) -> None:
        """Called before each step of the engine."""
        if what != "step":
            return
        job = self.job
        if step == job.warm:
            settle(job.device)
            self.before, self.first = self.clock.read(), time.perf_counter()
            watch_synchronisation(job.device, True)
        if step == job.warm + job.steps:
            watch_synchronisation(job.device, False)
            settle(job.device)
            self.seconds = time.perf_counter() - self.first
            self.split = {key: value - self.before[key] for key, value in self.clock.read().items()}

    def close(self) -> None:
        """Do nothing."""


def ours(job: Job, data: Path | None, compiled: bool) -> Found:
    """The engine's own loop."""
    from trainers import config, parallel
    from trainers.training import loop
    from trainers.training.trainer import build

    steps = job.warm + job.steps + 1
    with tempfile.TemporaryDirectory(dir=job.folder) as name:
        settings = config.build(
            {
                "run": {"dir": name}, "max_steps": steps, "device": job.device.type, "wandb": {"mode": "off"},
                "precision": job.precision, "batch": {"global": job.batch}, "log": {"every_steps": steps},
                "data": {
                    "dir": str(data or "synthetic"), "image_size": job.size, "workers": workers(), "prefetch": 4,
                    "synthetic_samples": 64 * job.batch,
                },
                "model": {"name": job.model, "channels_last": True, "compile": compiled},
                "schedule": {"warmup_epochs": 0.0}, "checkpoint": {"every_steps": 0}, "comm": {"hang_seconds": 0.0},
            }
        )  # fmt: skip
        place = parallel.locate("ddp")
        plan = config.make_plan(settings, "ddp", place.world)
        trainer = build(settings, plan, parallel.connect(settings, plan, place))
        loop.resume(trainer)
        trainer.records.watchdog.close()
        watch: Any = Stopwatch(job)
        watch.clock = trainer.records.clock
        trainer.progress.saved = steps  # nothing is saved at the end
        loop.train(replace(trainer, records=replace(trainer.records, watchdog=watch)))
        trainer.records.recorder.close()
    return Found(job.batch * job.steps / watch.seconds, memory(job.device), watch.split)


def peer(job: Job, make: Callable[..., gpu_peers.Step], compiled: bool) -> Found:
    """A peer's step."""
    step = make(job.model, job.device, job.batch, job.size, compiled)
    for _ in range(job.warm):
        step()
    settle(job.device)
    begin = time.perf_counter()
    for _ in range(job.steps):
        step()
    settle(job.device)
    return Found(job.batch * job.steps / (time.perf_counter() - begin), memory(job.device), {})


def variants(job: Job, jpegs: Path, compiled: bool) -> dict[str, Callable[[], Found]]:
    """All that is measured, by name."""
    found: dict[str, Callable[[], Found]] = {}
    for suffix, on in (("", False), (", compiled", True)):
        if on and not compiled:
            continue
        found[f"ours, generated pictures{suffix}"] = lambda on=on: ours(job, None, on)
        found[f"ours, JPEGs from shards{suffix}"] = lambda on=on: ours(job, jpegs, on)
        found[f"torchvision's reference step{suffix}"] = lambda on=on: peer(job, gpu_peers.torchvision_step, on)
        found[f"timm's step{suffix}"] = lambda on=on: peer(job, gpu_peers.timm_step, on)
    return found


def measure(job: Job, rounds: int, compiled: bool) -> dict[str, list[Found]]:
    """Run every variant once per round; report and leave out one that is not installed here."""
    jpegs = gpu_pictures.prepared(job.folder, job.pictures)
    found: dict[str, list[Found]] = {}
    for number in range(rounds):
        for name, run in variants(job, jpegs, compiled).items():
            gc.collect()
            if job.device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            try:
                result = run()
            except ImportError as error:
                print(f"  {name}: left out ({error})", flush=True)
                continue
            found.setdefault(name, []).append(result)
            print(
                f"  round {number + 1}, {name}: {result.rate:,.0f} img/s ({time.perf_counter() - begin:.0f} s)",
                flush=True,
            )
    return found


def rows(found: dict[str, list[Found]], job: Job) -> list[dict[str, Any]]:
    """Ours beside each of the others, eager with eager and compiled with compiled."""
    rates = {name: statistics.median(run.rate for run in runs) for name, runs in found.items()}
    result = []
    for name in (name for name in rates if name.startswith("ours")):
        others = [
            other for other in rates if not other.startswith("ours") and ("compiled" in other) == ("compiled" in name)
        ]
        for other in others:
            result.append({
                "name": f"{job.model}, {job.precision}, batch {job.batch}: {name}", "ours": round(rates[name], 1),
                "peer": round(rates[other], 1), "peer_name": other, "unit": "img/s",
                "ratio": round(rates[name] / rates[other], 3), "runs": len(found[name]),
            })  # fmt: skip
    return result


def table(found: dict[str, list[Found]]) -> str:
    """A line per variant: img/s, ratio to torchvision's step, share of the record, memory, the engine's time split."""
    lines = [f"{'':40} {'img/s':>8} {'ratio':>6} {'record':>7} {'GiB':>6}  time split"]
    base = statistics.median(run.rate for run in found["torchvision's reference step"])
    for name, runs in found.items():
        rate = statistics.median(run.rate for run in runs)
        split = runs[-1].split
        whole = sum(split.values()) or 1.0
        shares = ", ".join(f"{key} {value / whole:.0%}" for key, value in split.items() if value / whole >= 0.005)
        lines.append(f"{name:40} {rate:8,.0f} {rate / base:6.2f} {rate / RECORD:7.1%} {runs[-1].memory:6.1f}  {shares}")
    return "\n".join(lines)


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def watch_synchronisation(device: torch.device, on: bool) -> None:
    """Make every wait for the GPU an error, or allow it again."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error" if on else "default")


def memory(device: torch.device) -> float:
    """Peak memory on the GPU, in GiB."""
    return torch.cuda.max_memory_allocated() / GIB if device.type == "cuda" else 0.0


def workers() -> int:
    """Decoding threads: all cores but one, which drives the GPU."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def main() -> int:
    """Measure, or say that there is no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="leave the compiled ones out")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: runs all of the code and measures nothing")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: no GPU that this torch can use")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-", dir=options.out.parent) as name:
        job = Job(
            torch.device(options.device), "resnet50", "bf16", options.batch, 224, 12, options.steps, 4096, Path(name)
        )
        if options.smoke:
            job = Job(torch.device(options.device), "resnet18", "fp32", 2, 32, 1, 1, 48, Path(name))
        found = measure(job, 1 if options.smoke else options.rounds, not (options.eager or options.smoke))
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    about = f"{job.model}, {job.precision}, batch {job.batch}, {job.size} px, torch {torch.__version__}, {device}"
    print(f"\n{about}\n{table(found)}")
    if options.device == "cuda":
        print("no step of the engine made the processor wait for the GPU")
    if options.smoke:
        print("smoke: these figures mean nothing")
    options.out.write_text(json.dumps(rows(found, job), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
