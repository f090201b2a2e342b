"""A training program as many write it, in the shape of PyTorch's ImageNet example, for a campaign beside our own.

What it knows of failures is what that example knows: rank 0 saves model, optimizer and epoch at the end of an epoch,
and `--resume` begins at the epoch that follows. `--save-steps` also saves within an epoch, and resumes there. Process
group and timeouts are PyTorch's own. torchrun starts it (peer.yaml); model, data and pace are those of paced.py. What
it has done, and when, goes to a file of lines as our metrics have them, on a thread: no step waits for them.
"""

import argparse
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import paced  # type: ignore[import-not-found]  # beside this file, in a pod too
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("folder", type=Path, help="where checkpoint.pth.tar and metrics.jsonl are")
    add("--epochs", type=int, default=90)
    add("--epoch-steps", type=int, default=600, help="steps of an epoch")
    add("--batch-size", type=int, default=16, help="of all processes together")
    add("--lr", type=float, default=0.1)
    add("--momentum", type=float, default=0.9)
    add("--weight-decay", type=float, default=1e-4)
    add("--save-steps", type=int, default=0, help="also save after so many steps; 0: at the end of an epoch alone")
    add("--resume", action="store_true", help="begin where the checkpoint was saved, if there is one")
    return parser.parse_args()


class Samples(Dataset[tuple[Tensor, int]]):
    """As many samples as an epoch takes: those of paced.py in turn."""

    def __init__(self, count: int) -> None:
        self._images, self._count = paced.data("train"), count

    def __len__(self) -> int:
        """Count the samples."""
        return self._count

    def __getitem__(self, sample: int) -> tuple[Tensor, int]:
        """Return an image and its label."""
        image, label = self._images[sample % len(self._images)]
        return image.float() / 255, label


class Record:
    """Appends lines to a file, on a thread and in order; a line that storage refuses is tried again each second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: queue.Queue[str] = queue.Queue()
        self._lines.put("\n")  # the last line may have been cut
        threading.Thread(target=self._append, daemon=True).start()

    def write(self, event: str, **fields: Any) -> None:
        """Note an event of now."""
        self._lines.put(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")

    def close(self) -> None:
        """Wait until all lines are written."""
        self._lines.join()

    def _append(self) -> None:
        while True:
            line = self._lines.get()
            while True:
                try:
                    with self._path.open("a") as file:
                        file.write(line)
                    break
                except OSError:
                    time.sleep(1.0)
            self._lines.task_done()


def started() -> float:
    """Return when this process was started."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    alive = float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - alive


def last_step(path: Path) -> int:
    """Return the step that the program was at last, by its own lines."""
    step = 0
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            step = json.loads(line).get("step", step)
        except ValueError:  # cut when a pod died
            continue
    return step


class Training:
    """Model, optimizer and schedule, as they are saved and loaded."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.place: Path = args.folder / "checkpoint.pth.tar"
        self.model = DistributedDataParallel(paced.Net(paced.CLASSES))
        weights = self.model.parameters()
        self.optimizer = torch.optim.SGD(weights, args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=30)

    def load(self) -> tuple[int, int]:
        """Load the checkpoint, if there is one; return the epoch to begin, and the steps of it that are done."""
        if not self.place.is_file():
            return 0, 0
        saved = torch.load(self.place, weights_only=True)
        self.model.load_state_dict(saved["state_dict"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        return saved["epoch"], saved["step"]

    def save(self, epoch: int, step: int) -> None:
        """Save the checkpoint in place of the last one."""
        state = {"epoch": epoch, "step": step, "state_dict": self.model.state_dict(),
                 "optimizer": self.optimizer.state_dict(), "scheduler": self.scheduler.state_dict()}  # fmt: skip
        torch.save(state, self.place)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Make a step."""
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def main() -> None:
    """Train."""
    args = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    training = Training(args)
    epoch, done = training.load() if args.resume else (0, 0)
    print(f"rank {rank} of {world} begins at epoch {epoch}, step {done} of it", flush=True)
    record = None
    if rank == 0:
        args.folder.mkdir(parents=True, exist_ok=True)
        file, first = args.folder / "metrics.jsonl", epoch * args.epoch_steps + done
        lost, record = max(last_step(file) - first, 0), Record(file)
        record.write("start", started=started(), world_size=world)
        record.write("resume", step=first, lost_steps=lost)

    def save(epoch: int, step: int) -> None:
        if record is not None:
            begun = time.time()
            training.save(epoch, step)
            record.write("checkpoint", step=epoch * args.epoch_steps + step, stall=time.time() - begun)

    samples = Samples(args.epoch_steps * args.batch_size)
    sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(samples)
    loader = DataLoader(samples, args.batch_size // world, sampler=sampler)
    while epoch < args.epochs:
        sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader, 1):
            if step <= done:
                continue
            training.step(images, labels)
            if record is not None:
                record.write("train", step=epoch * args.epoch_steps + step)
            if args.save_steps and step % args.save_steps == 0 and step < args.epoch_steps:
                save(epoch, step)
        training.scheduler.step()
        epoch, done = epoch + 1, 0
        save(epoch, done)
    if record is not None:
        record.close()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # threads of torch that still run may abort the process while the interpreter ends


if __name__ == "__main__":
    main()
