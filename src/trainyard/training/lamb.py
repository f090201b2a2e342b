"""LAMB: Adam whose step is scaled, layer by layer, to the norm of the weights.

Source: Y. You et al., "Large Batch Optimization for Deep Learning", arXiv:1904.00962, algorithm 2, with the identity
for phi. Where published programs differ, this does what timm's and NVIDIA's FusedLAMB do: both moments are
bias-corrected, as in the algorithm; the trust ratio has no upper bound; it is 1 where either norm is 0, and for
parameters without weight decay (biases, normalisation), which follow plain Adam. Gradients are clipped outside
(`optimizer.clip_norm`); timm clips inside, at 1 by default.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainyard.parallel.sharding import local_parts, sum_over_parts


class Lamb(Optimizer):
    """LAMB over plain parameters, or over the shards of distributed ones."""

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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._step_group(parameters, group)
        return loss

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self._state(parameter) for parameter in parameters]
        weights, grads = local_parts(parameters), local_parts([_grad(parameter) for parameter in parameters])
        first = local_parts([state["exp_avg"] for state in states])
        second = local_parts([state["exp_avg_sq"] for state in states])
        beta1, beta2 = group["betas"]
        torch._foreach_add_([state["step"] for state in states], 1)
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)

        step = int(states[0]["step"])  # a tensor on the processor: nothing waits
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, (1 - beta2**step) ** 0.5)
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(first, 1 - beta1**step)
        torch._foreach_div_(updates, denominators)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            torch._foreach_mul_(updates, trust_ratios(parameters, weights, updates))  # type: ignore[arg-type]
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def trust_ratios(parameters: list[Tensor], weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """|weights| / |update| of each parameter, over all its shards; 1 where either norm is 0."""
    squares = [torch.stack(torch._foreach_norm(tensors)).square() for tensors in (weights, updates)]
    total = sum_over_parts(torch.stack(squares), parameters[0])
    ratios = (total[0] / total[1]).sqrt()
    return list(torch.where((total[0] > 0) & (total[1] > 0), ratios, 1.0).unbind())


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
