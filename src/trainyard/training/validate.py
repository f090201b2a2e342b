"""Exact validation: every sample of the split is measured once, for any number of processes.

Counts stay on the device until the end. Where a strategy requires the same number of forwards of every process
(`lockstep`), processes without samples forward blank images that are not counted.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.data.loader import Loader
from trainyard.data.prefetch import prefetch
from trainyard.data.sampler import validation_batches
from trainyard.parallel.base import CONTINUE, Strategy
from trainyard.run.result import Result
from trainyard.training.pace import Pace

# Most classes for which a validation also counts confusions (33 MB, which all processes sum).
MOST_CONFUSED = 2048


def evaluate(
    model: nn.Module,
    forward: Callable[[Tensor], Tensor],
    loader: Loader,
    strategy: Strategy,
    pace: Pace,
    *,
    batch: int,
    ask_vote: Callable[[], int],
) -> Result | int:
    """Measure the model on the whole split, or return the vote that ended it early.

    `forward` gives outputs (N, classes) for uint8 images (N, 3, H, W) on the device, for up to `batch` at a time.
    The host waits for the device only as `pace` asks, so that few batches lie there, until the counts are read.
    """
    samples = len(loader.labels)
    mine = validation_batches(samples, batch, strategy.rank, strategy.world)
    rounds = math.ceil(math.ceil(samples / batch) / strategy.world)
    tally = Tally(strategy.device)
    share_buffers(model, strategy)
    model.eval()
    batches = prefetch(loader.batches((0, ids) for ids in mine), strategy.device)
    # Tensors made in inference mode must not be kept by a strategy that gathers parameters for a forward.
    without_gradients = torch.no_grad if strategy.lockstep else torch.inference_mode
    for index in range(rounds):
        outcome = strategy.vote(ask_vote())
        item = next(batches) if index < len(mine) else None
        with without_gradients():
            if item:
                tally.add(forward(item.images), item.labels)
            elif strategy.lockstep:
                forward(blank(loader, strategy.device))
        pace.limit_lag()
        if (vote := outcome()) != CONTINUE:
            model.train()
            return vote
    model.train()
    return tally.result(samples, strategy)


class Tally:
    """Counts of one process, on its device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._samples = 0
        self._right = torch.zeros(2, dtype=torch.int64, device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._confusion = torch.zeros(0, dtype=torch.int64, device=device)

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Count a batch: outputs (N, classes) and labels (N,), both on the device, which is not waited for."""
        outputs = outputs.double()
        classes = outputs.size(1)
        self._samples += len(labels)
        self._right += count_correct(outputs, labels)
        self._loss += functional.cross_entropy(outputs, labels, reduction="sum")
        if classes <= MOST_CONFUSED:
            if not len(self._confusion):
                self._confusion = torch.zeros(classes**2, dtype=torch.int64, device=self._device)
            places = labels * classes + outputs.argmax(dim=1)
            self._confusion.scatter_add_(0, places, torch.ones_like(places))

    def result(self, samples: int, strategy: Strategy) -> Result:
        """Sum over all processes; every process calls it."""
        counted = int(strategy.sum(torch.tensor(self._samples)))
        right, loss = strategy.sum(self._right).tolist(), float(strategy.sum(self._loss))
        size = strategy.vote(len(self._confusion))()  # a process without any batch does not know the number of classes
        confusion = None
        if size:
            mine = self._confusion if len(self._confusion) else self._confusion.new_zeros(size)
            confusion = strategy.sum(mine).cpu().view(math.isqrt(size), -1)
        if counted != samples:
            raise RuntimeError(f"validation counted {counted} samples of {samples}")
        return Result(samples, right[0], right[1], loss / samples, confusion)


def blank(loader: Loader, device: torch.device) -> Tensor:
    """Return a batch of one black image."""
    return torch.zeros(1, 3, loader.size, loader.size, dtype=torch.uint8, device=device)


def count_correct(outputs: Tensor, labels: Tensor) -> Tensor:
    """Count the samples that are right at the first guess, and those right within five."""
    guesses = outputs.topk(min(5, outputs.size(1)), dim=1).indices
    right = guesses == labels[:, None]
    return torch.stack([right[:, 0].sum(), right.sum()])


def share_buffers(model: nn.Module, strategy: Strategy) -> None:
    """Give all processes rank 0's buffers (BatchNorm's statistics), in one message."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if not buffers or strategy.world == 1:
        return
    flat = strategy.broadcast(torch.cat([buffer.flatten() for buffer in buffers]))
    for buffer, values in zip(buffers, torch.split(flat, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(values.view_as(buffer))
