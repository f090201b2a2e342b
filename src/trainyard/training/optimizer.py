"""The optimizer that the settings name: which parameters it decays, and each one's learning rate in every step.

Layer-wise decay: Bao et al., "BEiT: BERT Pre-Training of Image Transformers", arXiv:2106.08254, as timm has it
(timm.optim.param_groups_layer_decay): the head learns at the full rate, each layer below it at `decay` times the rate
of the one above.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from trainyard.config.sections.learning import OptimizerSettings, ScheduleSettings
from trainyard.data.sampler import Length
from trainyard.models.fitting import find_head
from trainyard.parallel import eager
from trainyard.parallel.blocks import blocks
from trainyard.parallel.sharding import is_sharded, local_parts
from trainyard.training.lamb import Lamb, step_by_group

TORCHVISION_EMBEDDINGS = ("class_token", "pos_embedding", "relative_position_bias_table")
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)


def build(model: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """Return the optimizer over the model's parameters, plain or distributed, but for frozen ones.

    The fused forms update all of them in one pass over memory, on CPUs (3 times as fast) and GPUs.
    """
    groups = parameter_groups(model, settings)
    betas = (settings.betas[0], settings.betas[1])
    if settings.name == "lamb":
        return eager.eager_class(Lamb)(groups, settings.lr, betas, settings.eps)
    if settings.name == "adamw":
        return eager.eager_class(torch.optim.AdamW)(groups, settings.lr, betas, settings.eps, fused=True)
    if any(is_sharded(parameter) for parameter in model.parameters()):
        return eager.eager_class(ShardedSgd)(groups, settings.lr, settings.momentum, nesterov=settings.nesterov)
    return eager.eager_class(torch.optim.SGD)(
        groups, settings.lr, settings.momentum, nesterov=settings.nesterov, fused=True
    )


def begin_momentum(optimizer: Optimizer) -> None:
    """Begin the momentum of SGD at zero, for steps that may be left out since gradients overflow (fp16).

    Torch's fused form allocates it in the first step without writing to it where that one is left out, and the next
    step would read what lay in that memory.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("momentum") else ():
            optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def parameter_groups(model: nn.Module, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Return groups of the parameters that learn: with weight decay first, without last, in each by rising `lr_scale`.

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
    """Get an optimizer's state keyed by parameter name, also one of a checkpoint up to format 2, keyed by position."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    return {"state": {order[key] if isinstance(key, int) else key: value for key, value in state["state"].items()}}


def split(model: nn.Module, settings: OptimizerSettings) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
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


def scales(model: nn.Module, settings: OptimizerSettings) -> dict[str, float]:
    """Return the factor of each parameter's learning rate, by its name; the head's own is part of it."""
    layers = layer_of(model)
    top, head = max(layers.values()), find_head(model)[0] + "."
    return {
        name: settings.layer_decay ** (top - layer) * (settings.head_lr_scale if name.startswith(head) else 1.0)
        for name, layer in layers.items()
    }


def layer_of(model: nn.Module) -> dict[str, int]:
    """Get the layer of each parameter, by its name: 0 is the stem, then comes a layer per block; the head is the last.

    timm's models say themselves how they are divided. In others a block is what is repeated (parallel/blocks.py); what
    lies between two blocks belongs to the upper one, and what follows the last, such as a norm, belongs to it.
    """
    if hasattr(model, "group_matcher"):
        from timm.models import group_parameters

        timms: Any = model
        theirs: dict[str, int] = group_parameters(timms, timms.group_matcher(coarse=False), reverse=True)
        return theirs
    head = find_head(model)[0] + "."
    found = [block for block in blocks(model) if any(True for _ in block.children())]
    block_of = {id(part): index for index, block in enumerate(found, 1) for part in block.parameters()}
    layers, above, below = {}, len(found), set(block_of)
    for name, parameter in reversed(list(model.named_parameters())):
        above = block_of.get(id(parameter), above)
        below.discard(id(parameter))  # what is left are the blocks' parameters that come before this one
        stem = id(parameter) not in block_of and not below
        layers[name] = len(found) + 1 if name.startswith(head) else 0 if stem else above
    return layers


def peak_learning_rate(settings: OptimizerSettings, global_batch: float) -> float:
    """Apply the linear scaling rule."""
    return settings.lr * global_batch / settings.lr_batch


def learning_rate(
    schedule: ScheduleSettings, settings: OptimizerSettings, global_batch: float, length: Length, step: int
) -> float:
    """Return the learning rate of a step (counted from 0)."""
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


class ShardedSgd(torch.optim.SGD):
    """SGD that updates the shards of this process in one pass over their memory; torch has that for plain ones alone.

    A step whose scaled gradients are not all finite is left out by the kernel: a GradScaler need not read that.
    """

    _step_supports_amp_scaling = True  # torch.amp.GradScaler sets `found_inf` and `grad_scale` for a step

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters; the closure, if any, computes the loss again and returns it."""
        return step_by_group(self.param_groups, self._step_group, closure)

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        momenta = [self._momentum(parameter) for parameter in parameters] if group["momentum"] else []
        torch._fused_sgd_(
            local_parts(parameters),
            local_parts([parameter.grad for parameter in parameters if parameter.grad is not None]),
            local_parts(momenta),
            weight_decay=group["weight_decay"], momentum=group["momentum"], lr=group["lr"],
            dampening=group["dampening"], nesterov=group["nesterov"], maximize=group["maximize"], is_first_step=False,
            grad_scale=getattr(self, "grad_scale", None), found_inf=getattr(self, "found_inf", None),
        )  # fmt: skip

    def _momentum(self, parameter: Tensor) -> Tensor:
        state: dict[str, Tensor] = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return state["momentum_buffer"]
