"""What a checkpoint of ResNet-50 costs the training loop, from the GPU's memory: ours, torch.save, dcp.async_save."""

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch.distributed import checkpoint as dcp

from benchmarks.gpu.part import Part, main
from trainyard.run.checkpoint_writer import Writer

ROUNDS = 5


class Loop:
    """A training loop on one batch that lies on the device."""

    def __init__(self, gpu: bool) -> None:
        self.device = torch.device("cuda" if gpu else "cpu")
        self.steps = 20 if gpu else 2  # that a checkpoint is compared with
        self.model = (torchvision.models.resnet50() if gpu else torchvision.models.resnet18()).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.001, momentum=0.9)
        self.pictures = torch.randn((64, 3, 224, 224) if gpu else (2, 3, 32, 32), device=self.device)
        self.labels = torch.arange(len(self.pictures), device=self.device)

    def state(self) -> dict[str, Any]:
        """Return what is saved."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def step(self, settle: Callable[[], None] = lambda: None) -> None:
        """Ask for one step; what must be copied before weights change is waited for in `settle`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            outputs = self.model(self.pictures)
        torch.nn.functional.cross_entropy(outputs.float(), self.labels).backward()
        settle()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def settled(self) -> float:
        """Return the time at which the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class Method:
    """A way to save: `save` in the loop, `settle` before weights change, `finish` until it is on the disk."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.loop, self.folder = loop, folder

    def save(self) -> None:
        """Save, or begin to."""
        torch.save(self.loop.state(), self.folder.with_suffix(".pt"))

    def settle(self) -> None:
        """Wait for copies."""

    def finish(self) -> None:
        """Wait for the disk."""


class Ours(Method):
    """The trainers' writer."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        super().__init__(loop, folder)
        self.writer, self.count = Writer(folder, 1), 0

    def save(self) -> None:  # noqa: D102
        self.count += 1
        self.writer.submit(self.count, self.loop.state(), {}, changing=self.loop.model.buffers())

    def settle(self) -> None:  # noqa: D102
        self.writer.settle()

    def finish(self) -> None:  # noqa: D102
        self.writer.wait()


class AsyncSave(Method):
    """torch.distributed.checkpoint.async_save."""

    def save(self) -> None:  # noqa: D102
        shutil.rmtree(self.folder, ignore_errors=True)
        self.future: Any = dcp.async_save(self.loop.state(), checkpoint_id=self.folder)

    def finish(self) -> None:  # noqa: D102
        self.future.result()


def measure(loop: Loop, method: Method) -> tuple[float, float, float]:
    """Milliseconds: of the host in the call, of the loop in all, and until the checkpoint is on the disk.

    The loop's are those by which so many steps with a checkpoint take longer than without.
    """
    begin = loop.settled()
    for _ in range(loop.steps):
        loop.step()
    calm = loop.settled() - begin
    begin = loop.settled()
    method.save()
    call = time.perf_counter() - begin
    for _ in range(loop.steps):
        loop.step(method.settle)
    longer = loop.settled() - begin - calm
    method.finish()
    return call * 1e3, longer * 1e3, (time.perf_counter() - begin) * 1e3


def work(part: Part) -> None:
    """All three, in turns; the first round makes buffers and caches."""
    backend = "cpu:gloo,cuda:nccl" if part.gpu else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    loop = Loop(part.gpu)
    methods = {"ours": Ours(loop, part.folder / "ours"), "torch.save in the loop": Method(loop, part.folder / "saved"),
               "dcp.async_save": AsyncSave(loop, part.folder / "async")}  # fmt: skip
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
    for turn in range(1 + (ROUNDS if part.gpu else 1)):
        for name, method in methods.items():
            with part.guarded(name):
                one = measure(loop, method)
                if turn:
                    found[name].append(one)
    for name, runs in found.items():
        if runs:
            call, longer, whole = (statistics.median(column) for column in zip(*runs, strict=True))
            text = (
                f"call {call:.1f} ms, {loop.steps} steps take {longer:.1f} ms longer, on the disk after {whole:.0f} ms"
            )
            part.add(name, "ok", text, call_ms=call, longer_ms=longer, whole_ms=whole)


if __name__ == "__main__":
    main(work)
