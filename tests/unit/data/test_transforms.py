"""From an encoded picture to a tensor."""

import pytest
import torch

from trainyard import config
from trainyard.data import transforms


@pytest.mark.parametrize("crop", ["random_resized", "pad", "none"])
def test_augmentation_is_a_function_of_seed_epoch_and_sample(crop: str) -> None:
    picture = torch.randint(0, 256, (3, 40, 52), dtype=torch.uint8)
    augment = config.build({"recipe": "demo", "augment": {"crop": crop}}).augment

    def make(seed: int, epoch: int, sample: int) -> torch.Tensor:
        return transforms.training_image(picture, 24, augment, transforms.random_numbers(seed, epoch, sample))

    assert make(1, 2, 3).shape == (3, 24, 24)
    assert torch.equal(make(1, 2, 3), make(1, 2, 3))
    others = {make(*key).numpy().tobytes() for key in [(s, e, i) for s in (1, 2) for e in (0, 1) for i in range(8)]}
    assert len(others) > (1 if crop == "none" else 20)


def test_random_areas_stay_inside_and_within_bounds() -> None:
    uniform = transforms.random_numbers(1, 1, 1).uniform
    shares = []
    for _ in range(500):
        top, left, height, width = transforms.random_area(100, 150, [0.08, 1.0], [3 / 4, 4 / 3], uniform)
        assert 0 <= top <= top + height <= 100
        assert 0 <= left <= left + width <= 150
        assert 0.7 < width / height < 1.4
        shares.append(height * width / 15000)
    assert min(shares) < 0.12
    assert max(shares) > 0.8
    assert transforms.random_area(10, 400, [0.9, 1.0], [3 / 4, 4 / 3], uniform) == (0, 193, 10, 13)
