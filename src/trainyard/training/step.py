"""One optimizer step: forward and backward over this process's share of the global batch, and the update."""

import contextlib

from torch import Tensor

from trainyard.data.loader import Batch
from trainyard.parallel.pairs import in_pairs
from trainyard.training import optimizer as optimizers
from trainyard.training.compiled import called_with
from trainyard.training.loss import loss_sum
from trainyard.training.mixup import mix, mixes
from trainyard.training.trainer import Trainer


def train_step(t: Trainer, batch: Batch) -> Tensor:
    """One optimizer step; this process's share of the global batch's mean loss."""
    learner, strategy, order, step = t.learner, t.strategy, t.data.order, t.progress.step
    total = len(order.global_batch(step))
    weight = strategy.loss_weight(len(batch.ids), total)
    optimizers.set_learning_rate(learner.optimizer, learning_rate(t, step))
    losses = []
    # All processes do the same number of forwards, also where a ragged batch leaves some of them empty.
    parts = order.parts(len(batch.ids), t.plan.forwards)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        # Dropout and the like draw the same numbers after a resume as they would have without it.
        place = strategy.rank * len(parts) + index
        strategy.seed(((t.config.seed << 32) + step) * strategy.world * len(parts) + place)
        with contextlib.nullcontext() if last else strategy.accumulating(learner.model):
            loss = loss_of(t, batch.pictures[part], batch.labels[part])
            learner.scaler.scale(loss * weight).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().double() / total)
    t.records.writer.settle()  # copying a checkpoint may overlap forward and backward, but must end here
    strategy.step(learner.optimizer, learner.scaler, t.config.optimizer.clip_norm)
    learner.optimizer.zero_grad()
    if learner.ema:
        learner.ema.update(step)
    return in_pairs(losses)


def loss_of(t: Trainer, pictures: Tensor, labels: Tensor) -> Tensor:
    """Summed training loss of uint8 pictures (N, 3, H, W) and labels (N,), which begin at an even position."""
    config = t.config
    inputs, targets = t.learner.normalise(pictures), labels
    if mixes(config.augment):
        inputs, targets = mix(inputs, labels, t.data.splits.classes, config.augment, config.seed, t.progress.step)
    with called_with(config.model.compile, len(labels), t.learner.sizes), t.learner.autocast:
        outputs = t.learner.model(inputs)
    return loss_sum(outputs, targets, config.loss)


def learning_rate(t: Trainer, step: int) -> float:
    """The learning rate of a step, counted from 0."""
    return optimizers.learning_rate(
        t.config.schedule, t.config.optimizer, t.strategy.rate_batch(t.plan.batch), t.data.length, step
    )
