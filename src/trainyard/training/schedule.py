"""The learning rate of every step, as pure functions of the settings."""

import math

from torch.optim import Optimizer

from trainyard.config.sections.learning import Optimizer as Settings
from trainyard.config.sections.learning import Schedule
from trainyard.data.sampler import Length


def peak_learning_rate(settings: Settings, global_batch: float) -> float:
    """The linear scaling rule."""
    return settings.lr * global_batch / settings.lr_batch


def learning_rate(schedule: Schedule, settings: Settings, global_batch: float, length: Length, step: int) -> float:
    """The learning rate of a step (counted from 0)."""
    peak = peak_learning_rate(settings, global_batch)
    # Everything is counted in steps, or in whole epochs if the rate changes only between them.
    unit = length.steps_per_epoch if schedule.every == "epoch" else 1
    index, end = step // unit, -(-length.steps // unit)
    warmup = round(schedule.warmup_epochs * length.steps_per_epoch / unit)
    if index < warmup:
        # From a given start, the first unit has just that; from zero, the first unit is one increment above it.
        done = index / warmup if schedule.warmup_start else (index + 1) / warmup
        return peak * (schedule.warmup_start + (1 - schedule.warmup_start) * done)
    if schedule.name in ("cosine", "linear"):
        progress = (index - warmup) / max(1, end - warmup)
        left = 0.5 * (1 + math.cos(math.pi * progress)) if schedule.name == "cosine" else 1 - progress
        return peak * (schedule.final + (1 - schedule.final) * left)
    if schedule.name == "step":
        passed = sum(index * unit >= milestone * length.steps_per_epoch for milestone in schedule.milestones)
        return peak * schedule.gamma**passed
    return peak


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of every group, times the group's own factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]
