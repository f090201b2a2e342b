"""Models of the parts: a small one, and two that fail on the GPU for real."""

from typing import Any

import torch
from torch import Tensor, nn

ILLEGAL = 'extern "C" __global__ void illegal(float* place) { ((float*)16)[threadIdx.x] = place[0]; }'


def little(num_classes: int) -> nn.Module:
    """Return a small convolutional net with BatchNorm, for machines without a GPU."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes),
    )  # fmt: skip


class Failing(nn.Module):
    """The little model, of which the sixth training step does something to the GPU first."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.inner, self.steps = little(num_classes), 0

    def fail(self, pictures: Tensor) -> None:
        """Make the GPU fail."""
        raise NotImplementedError

    def forward(self, pictures: Tensor) -> Tensor:  # noqa: D102
        self.steps += self.training
        if self.steps == 6:
            self.fail(pictures)
        outputs: Tensor = self.inner(pictures)
        return outputs


class Asserting(Failing):
    """Reads beyond the end of a tensor, which torch's own kernel finds: a device-side assert."""

    def fail(self, pictures: Tensor) -> None:  # noqa: D102
        torch.zeros(4, device=pictures.device)[torch.full((8,), 99, device=pictures.device)].sum()


class Illegal(Failing):
    """Writes to an address that is not the process's: an illegal memory access."""

    def fail(self, pictures: Tensor) -> None:  # noqa: D102
        compiled: Any = torch.cuda._compile_kernel(ILLEGAL, "illegal")
        compiled((1, 1, 1), (32, 1, 1), (torch.zeros(4, device=pictures.device),))


def asserting(num_classes: int) -> nn.Module:
    """Return a model that ends in a device-side assert."""
    return Asserting(num_classes)


def illegal(num_classes: int) -> nn.Module:
    """Return a model that ends in an illegal memory access."""
    return Illegal(num_classes)
