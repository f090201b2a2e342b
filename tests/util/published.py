"""The weights that runs publish, and their comparison."""

from pathlib import Path

import torch


def weights(run: Path) -> dict[str, torch.Tensor]:
    """A run's published weights by name."""
    found: dict[str, torch.Tensor] = torch.load(run / "published" / "model.pth", weights_only=True)
    return found


def assert_same_weights(run: Path, other: Path) -> None:
    """Both have published the same, bit for bit."""
    one, two = weights(run), weights(other)
    assert list(one) == list(two), (list(one), list(two))
    different = [name for name in one if not torch.equal(one[name], two[name])]
    assert not different, different
