"""The optimizer's parameter groups and the learning rate of every step, as pure functions of the settings."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from trainers.lamb import Lamb
from trainers.settings import Config
from trainers.settings import Optimizer as Settings

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)


def build(model: nn.Module, settings: Settings) -> Optimizer:
    """The optimizer over the model's parameters, plain or distributed, some of them without weight decay.

    The fused forms update all of them in one pass over memory, on processors (3 times as fast) as on GPUs; PyTorch has
    none for distributed parameters' SGD.
    """
    decayed, plain = split(model, settings)
    both = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in both if group["params"]]
    betas = (settings.betas[0], settings.betas[1])
    if settings.name == "lamb":
        return Lamb(groups, settings.lr, betas, settings.eps)
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, settings.lr, betas, settings.eps, fused=True)
    fused = not any(isinstance(parameter, DTensor) for parameter in model.parameters())
    how = {"fused": True} if fused else {"foreach": True}
    return torch.optim.SGD(groups, settings.lr, settings.momentum, nesterov=settings.nesterov, **how)


def split(model: nn.Module, settings: Settings) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters with and without weight decay; what several modules share is there once."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    seen: set[int] = set()
    for module in model.modules():
        norm = isinstance(module, NORMS) or "Norm" in type(module).__name__
        for name, parameter in module.named_parameters(recurse=False):
            kind = "norm" if norm else "bias" if name.endswith("bias") else "weight"
            if id(parameter) not in seen:
                seen.add(id(parameter))
                (plain if kind in settings.no_decay else decayed).append(parameter)
    return decayed, plain


@dataclass(frozen=True)
class Length:
    """How long a run is."""

    steps: int
    steps_per_epoch: int

    @property
    def epochs(self) -> int:
        """Epochs begun when all steps are done."""
        return -(-self.steps // self.steps_per_epoch)


def peak_learning_rate(settings: Settings, global_batch: float) -> float:
    """The linear scaling rule."""
    return settings.lr * global_batch / settings.lr_batch


def learning_rate(config: Config, global_batch: float, length: Length, step: int) -> float:
    """The learning rate of a step (counted from 0)."""
    schedule = config.schedule
    peak = peak_learning_rate(config.optimizer, global_batch)
    # Everything is counted in steps, or in whole epochs if the rate changes only between them.
    unit = length.steps_per_epoch if schedule.every == "epoch" else 1
    index, end = step // unit, -(-length.steps // unit)
    warmup = round(schedule.warmup_epochs * length.steps_per_epoch / unit)
    if index < warmup:
        # From a given start, the first unit has just that; from zero, the first unit is one increment above it.
        done = index / warmup if schedule.warmup_start else (index + 1) / warmup
        return peak * (schedule.warmup_start + (1 - schedule.warmup_start) * done)
    if schedule.name == "cosine":
        progress = (index - warmup) / max(1, end - warmup)
        return peak * (schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * progress)))
    if schedule.name == "step":
        passed = sum(index * unit >= milestone * length.steps_per_epoch for milestone in schedule.milestones)
        return peak * schedule.gamma**passed
    return peak


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
