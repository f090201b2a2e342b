"""SGD over distributed parameters in its fused form, which torch has for plain ones alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainyard.parallel.sharding import local_parts
from trainyard.training.lamb import step_by_group


class ShardedSgd(torch.optim.SGD):
    """SGD that updates the shards of this process in one pass over their memory.

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
