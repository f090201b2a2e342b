"""What a checkpoint costs the training loop: ours, `torch.save` in the loop, and torch.distributed.checkpoint.

    python benchmarks/cpu/checkpoint.py OUT.json [--rounds 9]

ResNet-50 with momentum (205 MB) takes real training steps on the processor. In every round each method saves once, one
after the other, and steps continue until the checkpoint is on disk. Medians over the rounds, and ratio = ours / peer:

stall         what one checkpoint holds the loop up for: the call, and what a later step waits for the copy
loop time     what it costs in all: the stall, and what steps take longer while it is being written
step          a step while a checkpoint is being written, against one while none is
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch.distributed import checkpoint as dcp

from trainyard.run.checkpoint_writer import Writer

CALM_STEPS = 4
PICTURES, SIZE = 2, 64


class Loop:
    """A training loop, small enough to be repeated and with the weights of a big one."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torchvision.models.resnet50()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.pictures, self.labels = torch.randn(PICTURES, 3, SIZE, SIZE), torch.arange(PICTURES)
        self.waited = 0.0

    def state(self) -> dict[str, Any]:
        """Return what is saved."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def step(self, settle: Callable[[], None] = lambda: None) -> float:
        """One step; its seconds, less those in which it waited for a copy (added up in `waited`)."""
        begin = time.perf_counter()
        torch.nn.functional.cross_entropy(self.model(self.pictures), self.labels).backward()
        before = time.perf_counter()
        settle()
        waited = time.perf_counter() - before
        self.waited += waited
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin - waited


class Ours:
    """The trainers' own writer."""

    name = "ours"

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.loop, self.writer, self.count = loop, Writer(folder, 1), 0

    def save(self) -> None:
        """Save now, or start a save."""
        self.count += 1
        self.writer.submit(self.count, self.loop.state(), {}, changing=self.loop.model.buffers())

    def settle(self) -> None:
        """Wait until the state may change."""
        self.writer.settle()

    def writing(self) -> bool:
        """Whether a checkpoint is not on the disk yet."""
        return self.writer.writing

    def finish(self) -> None:
        """Wait for the disk."""
        self.writer.wait()


class TorchSave(Ours):
    """`torch.save` in the loop, as most scripts do it."""

    name = "torch.save in the loop"

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.loop, self.path = loop, folder / "state.pt"

    def save(self) -> None:  # noqa: D102
        torch.save(self.loop.state(), self.path)

    def settle(self) -> None:  # noqa: D102
        return

    def writing(self) -> bool:  # noqa: D102
        return False

    def finish(self) -> None:  # noqa: D102
        return


class AsyncSave(TorchSave):
    """torch.distributed.checkpoint.async_save."""

    name = "dcp.async_save"

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.loop, self.path, self.future = loop, folder, None

    def save(self) -> None:  # noqa: D102
        shutil.rmtree(self.path, ignore_errors=True)
        self.future: Any = dcp.async_save(self.loop.state(), checkpoint_id=self.path)

    def writing(self) -> bool:  # noqa: D102
        return not self.future.done()

    def finish(self) -> None:  # noqa: D102
        self.future.result()


def measure(loop: Loop, method: Ours) -> dict[str, float]:
    """One checkpoint, with calm steps before it and steps until it is written."""
    calm = statistics.median(loop.step() for _ in range(CALM_STEPS))
    loop.waited = 0.0
    begin = time.perf_counter()
    method.save()
    stall = time.perf_counter() - begin
    steps = [loop.step(method.settle)]
    while method.writing():
        steps.append(loop.step(method.settle))
    method.finish()
    stall += loop.waited
    slower = statistics.median(steps) - calm  # a median, so that a step that something else delayed does not count
    return {"stall": stall, "loop": stall + len(steps) * slower, "slow": 1 + slower / calm, "calm": calm}


def rows(found: dict[str, list[dict[str, float]]], rounds: int) -> list[dict[str, Any]]:
    """Return the table: each figure of ours beside each peer's."""

    def median(name: str, key: str) -> float:
        return statistics.median(run[key] for run in found[name])

    result = []
    kinds = (("stall", "checkpoint: stall of the loop", 1e3, "ms"), ("loop", "checkpoint: loop time in all", 1e3, "ms"),
             ("slow", "checkpoint: step while writing, to a calm one", 1.0, "times"))  # fmt: skip
    for key, title, factor, unit in kinds:
        for peer in (TorchSave.name, AsyncSave.name):
            ours, theirs = median(Ours.name, key) * factor, median(peer, key) * factor
            result.append({"name": title, "ours": round(ours, 2), "peer": round(theirs, 2), "peer_name": peer,
                           "unit": unit, "ratio": round(ours / theirs, 4), "runs": rounds})  # fmt: skip
    return result


def main() -> None:
    """Measure, write the rows, print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=options.out.parent))
    loop = Loop()
    methods = [kind(loop, folder / kind.__name__) for kind in (Ours, TorchSave, AsyncSave)]
    (folder / TorchSave.__name__).mkdir()
    found: dict[str, list[dict[str, float]]] = {method.name: [] for method in methods}
    try:
        for turn in range(options.rounds + 1):
            for method in methods:
                run = measure(loop, method)
                if turn:  # the first one makes buffers and caches
                    found[method.name].append(run)
    finally:
        dist.destroy_process_group()
        shutil.rmtree(folder)
    table = rows(found, options.rounds)
    options.out.write_text(json.dumps(table, indent=2) + "\n")
    for row in table:
        figures = f"{row['ours']:9.2f} {row['peer']:9.2f} {row['unit']:5} {row['ratio']:7.3f}"
        print(f"{row['name']:46} {figures}  vs {row['peer_name']}")
    print(f"calm step {statistics.median(run['calm'] for run in found[Ours.name]) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
