"""Exact validation: every sample of the split is measured once, whatever the number of processes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers.data.loader import Loader
from trainers.data.sampler import validation_batches
from trainers.parallel.base import CONTINUE, Strategy


@dataclass(frozen=True)
class Result:
    """What a validation found; accuracies in percent."""

    samples: int
    correct1: int
    correct5: int
    loss: float

    @property
    def top1(self) -> float:
        """Share of samples whose first guess is right."""
        return 100 * self.correct1 / self.samples

    @property
    def top5(self) -> float:
        """Share of samples with the right class among the first five guesses."""
        return 100 * self.correct5 / self.samples


def evaluate(
    model: nn.Module,
    forward: Callable[[Tensor], Tensor],
    loader: Loader,
    strategy: Strategy,
    *,
    batch: int,
    ballot: Callable[[], int],
) -> Result | int:
    """Measure the model on the whole split, or return the vote that ended it early."""
    samples = len(loader.labels)
    mine = validation_batches(samples, batch, strategy.rank, strategy.world)
    rounds = math.ceil(math.ceil(samples / batch) / strategy.world)
    counts = torch.zeros(3, dtype=torch.int64)
    loss = torch.zeros((), dtype=torch.float64)
    share_buffers(model, strategy)
    model.eval()
    batches = loader.batches((0, ids) for ids in mine)
    for index in range(rounds):
        outcome = strategy.vote(ballot())
        if index < len(mine):
            item = next(batches)
            labels = item.labels.to(strategy.device, non_blocking=True)
            with torch.inference_mode():
                outputs = forward(item.pictures).double()
                counts += count_correct(outputs, labels).cpu()
                loss += functional.cross_entropy(outputs, labels, reduction="sum").cpu()
        if (vote := outcome()) != CONTINUE:
            model.train()
            return vote
    model.train()
    counts, loss = strategy.sum(counts), strategy.sum(loss)
    if int(counts[0]) != samples:
        raise RuntimeError(f"validation counted {int(counts[0])} samples of {samples}")
    return Result(samples, int(counts[1]), int(counts[2]), float(loss) / samples)


def count_correct(outputs: Tensor, labels: Tensor) -> Tensor:
    """Count samples, those right at the first guess, and those right within five."""
    guesses = outputs.topk(min(5, outputs.size(1)), dim=1).indices
    right = guesses == labels[:, None]
    return torch.stack([torch.tensor(len(labels), device=right.device), right[:, 0].sum(), right.sum()])


def share_buffers(model: nn.Module, strategy: Strategy) -> None:
    """Give all processes the first one's buffers (BatchNorm's statistics), in one message."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if not buffers or strategy.world == 1:
        return
    flat = strategy.broadcast(torch.cat([buffer.flatten() for buffer in buffers]))
    for buffer, values in zip(buffers, torch.split(flat, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(values.view_as(buffer))
