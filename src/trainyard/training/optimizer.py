"""The optimizer that the settings name, and which parameters it decays."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from trainyard.config.sections.learning import Optimizer as Settings
from trainyard.parallel import eager
from trainyard.parallel.sharding import is_sharded
from trainyard.training.lamb import Lamb
from trainyard.training.layers import scales

TORCHVISION_EMBEDDINGS = ("class_token", "pos_embedding", "relative_position_bias_table")
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)


def build(model: nn.Module, settings: Settings) -> Optimizer:
    """The optimizer over the model's parameters, plain or distributed, but for frozen ones.

    The fused forms update all of them in one pass over memory, on CPUs (3 times as fast) and GPUs; PyTorch has none for
    SGD over distributed parameters.
    """
    groups = parameter_groups(model, settings)
    betas = (settings.betas[0], settings.betas[1])
    if settings.name == "lamb":
        return eager.plain(Lamb)(groups, settings.lr, betas, settings.eps)
    if settings.name == "adamw":
        return eager.plain(torch.optim.AdamW)(groups, settings.lr, betas, settings.eps, fused=True)
    fused = not any(is_sharded(parameter) for parameter in model.parameters())
    how = {"fused": True} if fused else {"foreach": True}
    return eager.plain(torch.optim.SGD)(groups, settings.lr, settings.momentum, nesterov=settings.nesterov, **how)


def parameter_groups(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
    """Groups of the parameters that learn: with weight decay first, without last, in each by rising `lr_scale`.

    `lr_scale` is the factor by which the schedule multiplies a group's learning rate.
    """
    scaled = settings.layer_decay != 1.0 or settings.head_lr_scale != 1.0
    by_name = scales(model, settings) if scaled else {}
    factors = {parameter: by_name.get(name, 1.0) for name, parameter in model.named_parameters()}
    groups: list[dict[str, Any]] = []
    for parameters, decay in zip(split(model, settings), (settings.weight_decay, 0.0), strict=True):
        for factor in sorted({factors[parameter] for parameter in parameters}):
            chosen = [parameter for parameter in parameters if factors[parameter] == factor]
            groups.append({"params": chosen, "weight_decay": decay, "lr_scale": factor})
    return groups


def by_name(state: dict[str, Any], optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """An optimizer's state keyed by parameter name, also one of a checkpoint up to format 2, keyed by position."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    return {"state": {order[key] if isinstance(key, int) else key: value for key, value in state["state"].items()}}


def split(model: nn.Module, settings: Settings) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters that learn, with and without weight decay; one that several modules share appears once."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    embeddings = embeddings_of(model)
    seen: set[int] = set()
    for module in model.modules():
        norm = isinstance(module, NORMS) or "Norm" in type(module).__name__
        for name, parameter in module.named_parameters(recurse=False):
            one = parameter.ndim == 1
            kind = "norm" if norm else "bias" if name.endswith("bias") else "vector" if one else "weight"
            kinds = {kind, "embedding"} if id(parameter) in embeddings else {kind}
            if id(parameter) not in seen and parameter.requires_grad:
                seen.add(id(parameter))
                (decayed if kinds.isdisjoint(settings.no_decay) else plain).append(parameter)
    return decayed, plain


def embeddings_of(model: nn.Module) -> set[int]:
    """Class tokens and position embeddings, by id: what a timm model names itself, and torchvision's transformers'."""
    theirs: Any = getattr(model, "no_weight_decay", set)
    named = set(theirs())
    return {
        id(parameter)
        for name, parameter in model.named_parameters()
        if name in named or name.rpartition(".")[2] in TORCHVISION_EMBEDDINGS
    }
