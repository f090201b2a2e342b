"""The size of training images by the epoch: those of the sources, its bounds, and what is refused."""

from typing import Any

import pytest

from trainyard import config
from trainyard.config.sections.data import DataSettings
from trainyard.core.exits import UserError
from trainyard.data.sizes import size_of, sizes_of


def sizes(epochs: int, **data: Any) -> list[int]:
    return [size_of(DataSettings(**data), epoch, epochs) for epoch in range(epochs)]


def test_sizes_are_ffcvs() -> None:
    """Its get_resolution for rn50_16_epochs.yaml: 160 up to epoch 11, 192 from 13, between them by 32."""
    assert sizes(16, size_start=160, image_size=192, size_ramp=[11 / 16, 13 / 16]) == [160] * 12 + [192] * 4


def test_sizes_are_composers_at_the_beginning_of_each_epoch() -> None:
    """Its ProgressiveResizing: from half of 176 pixels by 4, after 0.4 of the run and up to 0.8 of it."""
    found = sizes(28, size_start=88, image_size=176, size_ramp=[0.4, 0.8], size_multiple=4)
    for epoch, size in enumerate(found):
        grown = min(1.0, max(0.0, (epoch / 28 - 0.4) / (1 - 0.2 - 0.4)))
        assert size == round(176 * (0.5 + 0.5 * grown) / 4) * 4
    assert found[:12] == [88] * 12
    assert found[23:] == [176] * 5


@pytest.mark.parametrize("epochs", [1, 2, 5, 90])
@pytest.mark.parametrize("ramp", [[0.0, 0.0], [0.0, 1.0], [0.25, 0.75], [0.5, 0.5], [1.0, 1.0]])
def test_sizes_grow_between_their_bounds(epochs: int, ramp: list[float]) -> None:
    found = sizes(epochs, size_start=70, image_size=130, size_ramp=ramp, size_multiple=32)
    assert found == sorted(found)
    assert set(found) <= {70, 96, 128, 130}
    assert found[0] == (130 if ramp[1] == 0 else 70)
    assert sizes_of(DataSettings(size_start=70, image_size=130, size_ramp=ramp), epochs) == sorted(set(found))


def test_without_a_start_there_is_one_size() -> None:
    assert sizes(5, image_size=48) == [48] * 5


def test_an_epoch_is_counted_in_decimal() -> None:
    """0.07 * 100 is a little more than 7 as a binary fraction."""
    assert sizes(100, size_start=8, image_size=16, size_ramp=[0.07, 0.07])[6:8] == [8, 16]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"size_start": 48}, "data.size_start = 48: larger than data.image_size = 32, to which the size grows; set it"),
        ({"size_ramp": [0.8, 0.4]}, "data.size_ramp = [0.8, 0.4]: the first number must not be larger than the second"),
        ({"size_ramp": [0.4, 8]}, "data.size_ramp.1 = 8: input should be less than or equal to 1"),
    ],
)
def test_sizes_that_do_not_grow_are_refused_in_words(data: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        config.build({"recipe": "demo"}, {"data": data})
    assert said in str(caught.value)
