"""Sums by a binary tree: of pairs, then of pairs of pairs; a part of a sum is then the same wherever it is computed."""

from collections.abc import Sequence

from torch import Tensor


def in_pairs(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors, by a binary tree; where their number is odd, the last waits for the next level."""
    rest = list(parts)
    while len(rest) > 1:
        rest = [a + b for a, b in zip(rest[::2], rest[1::2], strict=False)] + rest[len(rest) & ~1 :]
    return rest[0]


class Tree:
    """Adds tensors in pairs as they come, and keeps no more of them than the tree has levels."""

    def __init__(self) -> None:
        self._branches: list[tuple[int, Tensor]] = []  # each with the number of tensors in it

    @property
    def empty(self) -> bool:
        """Whether nothing was added since the sum was taken."""
        return not self._branches

    def add(self, tensor: Tensor) -> None:
        """Add the next tensor, which the tree may keep."""
        count = 1
        while self._branches and self._branches[-1][0] == count:
            tensor, count = self._branches.pop()[1] + tensor, 2 * count
        self._branches.append((count, tensor))

    def take(self) -> Tensor:
        """Return the sum of all, which are a power of two; the tree is then empty."""
        ((_, tensor),) = self._branches
        self._branches.clear()
        return tensor
