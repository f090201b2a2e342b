"""An augmentation of the user's own: reproducible, after all others, and named where it fails."""

from pathlib import Path

import numpy as np
import pytest
import torch
from starting import opened

from trainyard import config
from trainyard.core.exits import UserError


def stamped(picture: torch.Tensor, numbers: np.random.Generator) -> torch.Tensor:
    """Paint a grey square at a random place."""
    top, left = numbers.integers(8, size=2)
    picture[:, top : top + 8, left : left + 8] = int(numbers.integers(256))
    return picture


def same(picture: torch.Tensor, numbers: np.random.Generator) -> torch.Tensor:
    return picture.clone()


def larger(picture: torch.Tensor, numbers: np.random.Generator) -> torch.Tensor:
    return torch.zeros(3, 20, 20, dtype=torch.uint8)


def broken(picture: torch.Tensor, numbers: np.random.Generator) -> torch.Tensor:
    raise ValueError("no such colour")


def batches(data: Path, function: str, split: str = "train", **over: object) -> list[torch.Tensor]:
    """Pictures of three epochs of 20 samples, with `function` of this file."""
    base = {"data.dir": str(data), "data.image_size": 16, "data.val_resize": 18, "epochs": 1, "batch.global": 8,
            "augment.policy": "rand", "augment.function": function and f"{__name__}:{function}"}  # fmt: skip
    built = config.build(*[config.parse_override(f"{key}={value}") for key, value in {**base, **over}.items()])
    loader = getattr(opened(built), split)
    ids = np.arange(min(20, len(loader.labels)))
    return [batch.images.clone() for batch in loader.batches((epoch, ids) for epoch in range(3))]


@pytest.mark.parametrize("decoder", ["native", "pillow"])
def test_it_is_a_function_of_seed_epoch_and_sample(data: Path, decoder: str) -> None:
    one = batches(data, "stamped", **{"data.decoder": decoder, "data.workers": 1, "data.readahead": 0})
    other = batches(data, "stamped", **{"data.decoder": decoder, "data.workers": 3, "data.prefetch": 4})
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    plain = batches(data, "", **{"data.decoder": decoder})
    assert all((a != b).flatten(1).any(dim=1).sum() > 15 for a, b in zip(one, plain, strict=True))


def test_it_comes_after_all_others_whose_numbers_stay_and_not_in_validation(data: Path) -> None:
    for one, other in zip(batches(data, "same"), batches(data, ""), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(batches(data, "broken", "val"), batches(data, "", "val"), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("broken", r"sample 0 of train .*: augment.function = .*broken'.*ValueError: no such colour"),
        ("larger", r"returned Tensor of torch.uint8 and shape \(3, 20, 20\); it must .* \(3, 16, 16\)"),
        ("absent", "augment.function = .*cannot be imported.*absent.*PYTHONPATH"),
    ],
)
def test_what_is_wrong_is_named(data: Path, function: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        batches(data, function)
