"""The optimizer that the settings name, and which parameters it decays."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from trainers.config.sections.learning import Optimizer as Settings
from trainers.training.lamb import Lamb

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
