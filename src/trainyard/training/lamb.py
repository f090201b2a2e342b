"""LAMB: Adam whose step is scaled, layer by layer, to the norm of the weights.

Source: Y. You et al., "Large Batch Optimization for Deep Learning", arXiv:1904.00962, algorithm 2, with the identity
for phi. Where published programs differ, this does what timm's and NVIDIA's FusedLAMB do: both moments are
bias-corrected, as in the algorithm; the trust ratio has no upper bound; it is 1 where either norm is 0, and for
parameters without weight decay (biases, normalisation), which follow plain Adam. Gradients are clipped outside
(`optimizer.clip_norm`); timm clips inside, at 1 by default.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainyard.parallel.sharding import local_parts, sum_over_parts


def step_by_group(
    groups: Iterable[dict[str, Any]],
    step_group: Callable[[list[Tensor], dict[str, Any]], None],
    closure: Callable[[], float] | None,
) -> float | None:
    """Do an optimizer's step: `step_group` gets each group's parameters that have a gradient; the closure's loss."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for group in groups:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if parameters:
            step_group(parameters, group)
    return loss


class Lamb(Optimizer):
    """LAMB over plain parameters, or over the shards of distributed ones.

    A step whose scaled gradients are not all finite is left out on the device: a GradScaler need not read that.
    """

    _step_supports_amp_scaling = True  # torch.amp.GradScaler sets `found_inf` and `grad_scale` for a step

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,  # Horovod makes its optimizer from the groups alone
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters; the closure, if any, computes the loss again and returns it."""
        return step_by_group(self.param_groups, self._step_group, closure)

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self._state(parameter) for parameter in parameters]
        weights, grads = local_parts(parameters), local_parts([_grad(parameter) for parameter in parameters])
        first = local_parts([state["exp_avg"] for state in states])
        second = local_parts([state["exp_avg_sq"] for state in states])
        found: Tensor | None = getattr(self, "found_inf", None)
        if found is None:
            now = _advance(states, grads, first, second, group)
        else:
            now = _advance_unless(found, getattr(self, "grad_scale", None), states, grads, first, second, group)
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, now.second**0.5)
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(first, now.first)
        torch._foreach_div_(updates, denominators)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            torch._foreach_mul_(updates, trust_ratios(parameters, weights, updates))  # type: ignore[arg-type]
        if isinstance(now.rate, Tensor):
            torch._foreach_mul_(updates, now.rate)
            torch._foreach_sub_(weights, updates)
        else:
            torch._foreach_add_(weights, updates, alpha=-now.rate)

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


class Now(NamedTuple):
    """The divisors of the moments in this step, and its learning rate: numbers, or tensors on the device."""

    first: Any
    second: Any
    rate: Any


Tensors = list[Tensor]


def _advance(
    states: list[dict[str, Tensor]], grads: Tensors, first: Tensors, second: Tensors, group: dict[str, Any]
) -> Now:
    """Add a step's gradients to the moments."""
    beta1, beta2 = group["betas"]
    torch._foreach_add_([state["step"] for state in states], 1)
    torch._foreach_lerp_(first, grads, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
    step = int(states[0]["step"])  # a tensor on the CPU: nothing waits
    return Now(1 - beta1**step, 1 - beta2**step, group["lr"])


def _advance_unless(  # noqa: PLR0917
    found: Tensor, scale: Tensor | None, states: list[dict[str, Tensor]], grads: Tensors, first: Tensors,
    second: Tensors, group: dict[str, Any],
) -> Now:  # fmt: skip
    """Do the same on the device alone, by gradients times `scale`; `found` is 0 unless one of them is not finite.

    In that case step, moments and weights stay: the gradients count as 0, the decays and the rate as none.
    """
    beta1, beta2 = group["betas"]
    good = found == 0
    clean = [torch.where(good, grad, 0.0) for grad in grads]
    if scale is not None:
        torch._foreach_div_(clean, scale)
    for state in states:  # where it was loaded, it is on the CPU
        state["step"] = state["step"].to(found.device, non_blocking=True)
    torch._foreach_add_([state["step"] for state in states], [good.to(states[0]["step"].dtype)] * len(states))
    kind = grads[0].dtype
    torch._foreach_mul_(first, torch.where(good, beta1, 1.0).to(kind))
    torch._foreach_add_(first, torch._foreach_mul(clean, 1 - beta1))
    torch._foreach_mul_(second, torch.where(good, beta2, 1.0).to(kind))
    torch._foreach_addcmul_(second, clean, clean, 1 - beta2)
    step = states[0]["step"].double().clamp(min=1)
    of_first, of_second = (1 - torch.pow(beta, step) for beta in (beta1, beta2))
    return Now(of_first.to(kind), of_second.to(kind), torch.where(good, group["lr"], 0.0).to(kind))


def trust_ratios(parameters: list[Tensor], weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """|weights| / |update| of each parameter, over all its shards; 1 where either norm is 0."""
    squares = [torch.stack(torch._foreach_norm(tensors)).square() for tensors in (weights, updates)]
    total = sum_over_parts(torch.stack(squares), parameters[0])
    ratios = (total[0] / total[1]).sqrt()
    return list(torch.where((total[0] > 0) & (total[1] > 0), ratios, 1.0).unbind())


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
