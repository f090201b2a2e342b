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


class Attending(nn.Module):
    """Patches of 16 pixels and two layers of attention, with heads as large as flash attention wants them."""

    def __init__(self, num_classes: int, width: int = 128, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.queries = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.head = nn.Linear(width, num_classes)

    def forward(self, pictures: Tensor) -> Tensor:  # noqa: D102
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        for norm, queries in zip(self.norms, self.queries, strict=True):
            split = queries(norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(*split.unbind())
            x = x + seen.transpose(1, 2).flatten(2)
        outputs: Tensor = self.head(x.mean(dim=1))
        return outputs


def attending(num_classes: int) -> nn.Module:
    """Return a small vision transformer."""
    return Attending(num_classes)


class Failing(nn.Module):
    """The little model, of which the sixth training step does something to the GPU first."""

    fails_at = 6

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.inner, self.steps = little(num_classes), 0

    def fail(self, pictures: Tensor) -> None:
        """Make the GPU fail."""
        raise NotImplementedError

    def forward(self, pictures: Tensor) -> Tensor:  # noqa: D102
        self.steps += self.training
        if self.steps == self.fails_at:
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


class Greedy(Failing):
    """Asks for more memory than any GPU has."""

    def fail(self, pictures: Tensor) -> None:  # noqa: D102
        torch.empty(1 << 42, dtype=torch.uint8, device=pictures.device)


class GreedyAtOnce(Greedy):
    """The same in the first step."""

    fails_at = 1


def greedy(num_classes: int) -> nn.Module:
    """Return a model for which memory is too small in the sixth step."""
    return Greedy(num_classes)


def greedy_at_once(num_classes: int) -> nn.Module:
    """Return a model for which memory is too small in the first step."""
    return GreedyAtOnce(num_classes)


def asserting(num_classes: int) -> nn.Module:
    """Return a model that ends in a device-side assert."""
    return Asserting(num_classes)


def illegal(num_classes: int) -> nn.Module:
    """Return a model that ends in an illegal memory access."""
    return Illegal(num_classes)
