"""Blur pooling: a low-pass filter before a layer drops pixels, so that what it keeps does not depend on their parity.

Zhang, "Making Convolutional Networks Shift-Invariant Again", arXiv:1904.11486, as Composer and ffcv apply it: before a
convolution instead of after it, which needs no further multiplications of the convolution.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.config.sections.learning import BlurPool
from trainyard.core.exits import UserError

LEAST_CHANNELS = 16  # a convolution of fewer sees the image itself


def blur_pooling(model: nn.Module, what: BlurPool) -> None:
    """Have a model blur before it drops pixels, keeping names and weights; raises UserError where nothing does so."""
    found = [
        (module, name, child)
        for module in model.modules() for name, child in module.named_children()
        if _drops(child, what)
    ]  # fmt: skip
    if not found:
        raise UserError(
            f"model.blur_pool = {what!r}: this model has no layer that it concerns: convolutions with a stride and at "
            f"least {LEAST_CHANNELS} channels{' or max pooling' if what == 'all' else ''}; set it to none"
        )
    for module, name, child in found:
        setattr(module, name, BlurredConv.like(child) if isinstance(child, nn.Conv2d) else BlurredMaxPool.like(child))


def _drops(layer: nn.Module, what: str) -> bool:
    """Whether a layer drops pixels, and is one of PyTorch's own that `what` names."""
    if type(layer) is nn.Conv2d:
        return max(layer.stride) > 1 and layer.in_channels >= LEAST_CHANNELS
    return what == "all" and type(layer) is nn.MaxPool2d and layer.stride not in (1, (1, 1))


def _kernel() -> Tensor:
    """Return the filter (1, 1, 3, 3), the product of (1, 2, 1) / 4 with itself."""
    line = torch.tensor([0.25, 0.5, 0.25])
    return torch.outer(line, line)[None, None]


def blur(x: Tensor, kernel: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
    """Filter each channel of x (N, C, H, W) by itself; beyond the border are zeros."""
    channels = x.size(1)
    return functional.conv2d(x, kernel.expand(channels, 1, 3, 3), stride=stride, padding=1, groups=channels)


class BlurredConv(nn.Conv2d):
    """A convolution whose input is blurred; its state dict is the plain one's."""

    kernel: Tensor

    @classmethod
    def like(cls, other: Any) -> "BlurredConv":
        """Return a replacement of a convolution, with the same parameters."""
        result = cls(
            other.in_channels, other.out_channels, other.kernel_size, other.stride, other.padding, other.dilation,
            other.groups, other.bias is not None, other.padding_mode, device="meta",
        )  # fmt: skip
        result.weight, result.bias = other.weight, other.bias
        result.register_buffer("kernel", _kernel(), persistent=False)
        return result.train(other.training)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return super().forward(blur(x, self.kernel))


class BlurredMaxPool(nn.MaxPool2d):
    """Max pooling of every pixel's surroundings, which are blurred before pixels are dropped."""

    kernel: Tensor

    @classmethod
    def like(cls, other: Any) -> "BlurredMaxPool":
        """Return a replacement of a max pooling."""
        result = cls(other.kernel_size, other.stride, other.padding, other.dilation, ceil_mode=other.ceil_mode)
        result.register_buffer("kernel", _kernel(), persistent=False)
        return result.train(other.training)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        found = functional.max_pool2d(x, self.kernel_size, 1, self.padding, self.dilation, self.ceil_mode)
        return blur(found, self.kernel, self.stride)
