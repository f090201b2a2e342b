"""BatchNorm over the samples of all processes, with the kernels that torch's SyncBatchNorm has for GPUs.

They read activations in the type that these have, and compute statistics in fp32. Other than SyncBatchNorm this never
waits for the GPU: that one drops processes without samples by a mask, whose size the CPU must know, at each
layer. Here the statistics are summed, in fp64 so that squares may be subtracted, and no samples add nothing; that is
one collective per layer and direction, as there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Sum = Callable[[Tensor], Tensor]


class Statistics(NamedTuple):
    """Of all processes' samples: mean and variance (biased) per channel, and how many values each has (1,)."""

    mean: Tensor
    variance: Tensor
    values: Tensor
    some: Tensor  # whether there are any


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, total: Sum
) -> tuple[Tensor, Statistics]:
    """Normalise x (N, C, ...), of which a process may have no samples; scale and shift are in the statistics' type."""
    out, *found = _Normalise.apply(x, weight, bias, eps, total)
    return out, Statistics(*found)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, total: Sum
    ) -> tuple[Tensor, ...]:
        x = _dense(x)
        channels, values = x.size(1), x.numel() // x.size(1)
        sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=x.device)
        if values:
            local, inverse = (part.double() for part in torch.batch_norm_stats(x, eps))
            sums[:channels] = values * local
            sums[channels:-1] = values * (inverse.pow(-2) - eps + local.square())
            sums[-1] = values
        sums = total(sums)
        count = sums[-1:].clamp(min=1)
        mean = sums[:channels] / count
        variance = (sums[channels:-1] / count - mean.square()).clamp(min=0)
        mean, variance, inverse = (part.float() for part in (mean, variance, (variance + eps).rsqrt()))
        ctx.save_for_backward(x, weight, mean, inverse, count.int())
        ctx.total = total
        out = torch.batch_norm_elemt(x, weight, bias, mean, inverse, eps) if values else torch.empty_like(x)
        found = (mean, variance, count.float(), sums[-1] > 0)
        ctx.mark_non_differentiable(*found)
        return out, *found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, count = ctx.saved_tensors
        gradient, channels = _dense(gradient), x.size(1)
        sums = torch.zeros(2 * channels, dtype=mean.dtype, device=x.device)
        of_weight = of_bias = None if weight is None else torch.zeros_like(weight)
        if x.numel():
            first, second, of_weight, of_bias = torch.batch_norm_backward_reduce(
                gradient, x, mean, inverse, weight, True, weight is not None, weight is not None
            )
            sums = torch.cat([first, second])
        sums = ctx.total(sums)
        if not x.numel():
            return torch.empty_like(x), of_weight, of_bias, None, None
        first, second = sums[:channels], sums[channels:]
        of_x = torch.batch_norm_backward_elemt(gradient, x, mean, inverse, weight, first, second, count)
        return of_x, of_weight, of_bias, None, None


def _dense(x: Tensor) -> Tensor:
    """In the memory format that x has, of the two that the kernels know."""
    return x if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()
