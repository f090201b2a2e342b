"""The optimizer that the settings name, and which parameters it decays."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from trainers.config.sections.learning import Optimizer as Settings
from trainers.training.lamb import Lamb

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)


def build(model: nn.Module, settings: Settings) -> Optimizer:
    """The optimizer over the model's parameters, plain or distributed, in groups with and without weight decay.

    The fused forms update all of them in one pass over memory, on CPUs (3 times as fast) and GPUs; PyTorch has none for
    SGD over distributed parameters.
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


def by_name(state: dict[str, Any], optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """An optimizer's state keyed by parameter name, also one of a checkpoint up to format 2, keyed by position."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    return {"state": {order[key] if isinstance(key, int) else key: value for key, value in state["state"].items()}}


def split(model: nn.Module, settings: Settings) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters with and without weight decay; a parameter that several modules share appears once."""
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
