"""Step time of the trainers' engine against a minimal hand-written loop that does the same work, on 1 and 2 processes.

    python benchmarks/cpu/step.py OUT.json [--pairs 80]

Both train ResNet-18 at 64 px, 16 samples per process, on generated uint8 pictures from memory, with momentum and a
cosine schedule, on the processor. The two take turns step by step inside the same processes, so that a machine whose
speed drifts slows both; the hand-written step runs where the engine reports that its next one begins. The ratio is the
median over the pairs, its 95 % interval a bootstrap's.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ours

WORLDS = (1, 2)
WARM = 8
SAMPLES, SIZE, CLASSES, LR = 16, 64, 100, 0.01


class Turns:
    """Replaces the engine's watchdog, which is called at every step: runs the other loop's step in between."""

    def __init__(self, other: Callable[[], None]) -> None:
        self.other, self.began = other, 0.0
        self.ours: list[float] = []
        self.peer: list[float] = []

    def beat(self, what: str, step: int) -> None:
        """Time a step of the engine and one of the peer; the engine calls it before each."""
        if what != "step":
            return
        now = time.perf_counter()
        if self.began:
            self.ours.append(now - self.began)
        self.other()
        self.began = time.perf_counter()
        self.peer.append(self.began - now)

    def close(self) -> None:
        """Do nothing."""


def handwritten(world: int, steps: int) -> Callable[[], None]:
    """Return a tutorial's training loop, as single steps."""
    import torch
    import torchvision
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model: Any = torchvision.models.resnet18(num_classes=CLASSES)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9, weight_decay=1e-4, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    pictures = torch.randint(0, 256, (8, SAMPLES, 3, SIZE, SIZE), dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (8, SAMPLES))
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1) * 255
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1) * 255
    count = 0

    def step() -> None:
        nonlocal count
        x, y = pictures[count % 8], labels[count % 8]
        count += 1
        loss = torch.nn.functional.cross_entropy(model((x.float() - mean) / std), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    return step


def inside(out: Path, folder: Path, pairs: int) -> None:
    """One process: the engine's own loop, and the other's steps between its steps."""
    from trainyard.training import loop

    steps = WARM + pairs + 1
    trainer = ours.resumed(
        run={"dir": str(folder / "run")}, max_steps=steps, device="cpu", wandb={"mode": "off"},
        batch={"per_process": SAMPLES}, optimizer={"lr": LR, "lr_batch": SAMPLES},
        data={"dir": "synthetic", "image_size": SIZE, "synthetic_samples": 4096, "workers": 1},
        model={"name": "resnet18", "num_classes": CLASSES}, schedule={"warmup_epochs": 0.0},
        checkpoint={"every_steps": 0}, comm={"hang_seconds": 0.0}, log={"every_steps": 10},
    )  # fmt: skip
    trainer.records.watchdog.close()
    turns: Any = Turns(handwritten(trainer.strategy.world, steps))
    loop.train(replace(trainer, records=replace(trainer.records, watchdog=turns)))
    if trainer.strategy.rank == 0:
        trainer.records.writer.wait()
        out.write_text(json.dumps({"ours": turns.ours[WARM:], "peer": turns.peer[WARM:]}))
    ours.leave(trainer)


def row(world: int, ours: list[float], peer: list[float]) -> dict[str, Any]:
    """Return a line of the table, from the seconds of each pair's steps."""
    pairs = min(len(ours), len(peer))
    ratios = np.array(ours[:pairs]) / np.array(peer[:pairs])
    drawn = np.random.default_rng(0).choice(ratios, (4000, pairs))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return {
        "name": f"step of ResNet-18, {world} process{'es' if world > 1 else ''}",
        "ours": round(float(np.median(ours)) * 1e3, 2), "peer": round(float(np.median(peer)) * 1e3, 2),
        "peer_name": "hand-written DDP loop" if world > 1 else "hand-written loop", "unit": "ms",
        "ratio": round(float(np.median(ratios)), 4), "interval": [round(float(low), 4), round(float(high), 4)],
        "runs": pairs,
    }  # fmt: skip


def main() -> None:
    """Measure on each number of processes, write the rows, print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.out, options.inside, options.pairs)
    rows = []
    for world in WORLDS:
        with tempfile.TemporaryDirectory(prefix="step-") as name:
            found, folder = Path(name) / "times.json", Path(name)
            ours.launch(__file__, world, str(found), "--pairs", str(options.pairs), "--inside", str(folder))
            rows.append(row(world, **json.loads(found.read_text())))
    options.out.write_text(json.dumps(rows, indent=2) + "\n")
    for line in rows:
        low, high = line["interval"]
        print(
            f"{line['name']:32} {line['ours']:8.2f} {line['peer']:8.2f} ms  {line['ratio']:.4f} ({low:.4f}-{high:.4f})"
        )


if __name__ == "__main__":
    main()
