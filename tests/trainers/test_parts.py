"""The parts of the engine by themselves: order, augmentation, counting, environment."""

import numpy as np
import pytest
import torch

from trainers import config, evaluate, launch
from trainers.charts import ticks
from trainers.data import decode, sampler, transforms
from trainers.exits import UserError
from trainers.parallel.environment import Place, under_mpi, under_torchrun


def test_each_epoch_is_a_permutation_and_the_tail_is_kept() -> None:
    order = sampler.Order(samples=23, batch=8, seed=5)
    assert order.steps_per_epoch == 3
    for epoch in range(3):
        steps = range(3 * epoch, 3 * epoch + 3)
        assert sorted(np.concatenate([order.global_batch(step) for step in steps])) == list(range(23))
        for step in steps:
            for world in (1, 2, 3, 4):
                parts = [order.slice(step, rank, world) for rank in range(world)]
                assert np.array_equal(np.concatenate(parts), order.global_batch(step))
    assert len(order.global_batch(2)) == 7
    assert [order.samples_before(step) for step in (0, 1, 3, 5)] == [0, 8, 23, 39]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 9])
def test_validation_batches_are_the_same_cuts_for_any_world(world: int) -> None:
    cuts = [tuple(cut) for rank in range(world) for cut in sampler.validation_batches(103, 10, rank, world)]
    assert sorted(cuts) == [tuple(range(start, min(start + 10, 103))) for start in range(0, 103, 10)]


@pytest.mark.parametrize("crop", ["random_resized", "pad", "none"])
def test_augmentation_is_a_function_of_seed_epoch_and_sample(crop: str) -> None:
    picture = torch.randint(0, 256, (3, 40, 52), dtype=torch.uint8)
    augment = config.build({"recipe": "demo", "augment": {"crop": crop}}).augment

    def make(seed: int, epoch: int, sample: int) -> torch.Tensor:
        return transforms.training_picture(picture, 24, augment, transforms.random_numbers(seed, epoch, sample))

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


def test_validation_picture_is_the_centre() -> None:
    picture = torch.zeros(3, 40, 60, dtype=torch.uint8)
    picture[:, 10:30, 20:40] = 255
    assert bool((decode.centre(picture, 20, 40) == 255).all())
    assert decode.centre(picture, 20, 21).shape == (3, 20, 20)


def test_unusual_jpegs_are_decoded() -> None:
    from io import BytesIO

    from PIL import Image

    for mode in ("L", "CMYK", "RGB"):
        buffer = BytesIO()
        Image.new(mode, (9, 7), 100 if mode == "L" else (100, 20, 30, 0)[: len(mode)]).save(buffer, "JPEG")
        for name in ("auto", "torchvision", "pillow"):
            assert decode.choose(name).open(buffer.getvalue()).shape == (3, 7, 9)


def test_counting_correct_samples() -> None:
    outputs = torch.eye(7)[[0, 1, 2, 3]] * 9 + torch.arange(7.0)
    counts = evaluate.count_correct(outputs, torch.tensor([0, 1, 6, 0]))
    assert counts.tolist() == [4, 2, 3]
    result = evaluate.Result(*counts.tolist(), loss=1.0)
    assert (result.top1, result.top5) == (50.0, 75.0)


TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}
OPENMPI = {f"OMPI_COMM_WORLD_{key}": value for key, value in
           {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items()}  # fmt: skip


def test_environment_is_read_whole_or_refused() -> None:
    place = Place(3, 4, 1, 2)
    assert under_torchrun(TORCHRUN) == place
    assert under_mpi(OPENMPI) == place
    assert under_torchrun({}) == under_mpi({}) == Place()
    for name in TORCHRUN:
        with pytest.raises(UserError, match=f"half set: .* but not {name}"):
            under_torchrun({key: value for key, value in TORCHRUN.items() if key != name})
    for wrong, said in [({"RANK": "4"}, "contradicts itself"), ({"WORLD_SIZE": "x"}, "holds no numbers")]:
        with pytest.raises(UserError, match=said):
            under_torchrun({**TORCHRUN, **wrong})


def test_launchers_exit_code_is_the_one_that_says_most() -> None:
    assert launch.exit_code({0: (138, 1), 1: (77, 2)}) == 77
    assert launch.exit_code({0: (1, 2), 1: (-9, 1)}) == 137
    assert launch.exit_code({0: (-15, 1), 1: (138, 1), 2: (1, 5)}) == 1
    assert launch.exit_code({0: (143, 1), 1: (143, 1)}) == 143
    assert launch.exit_code({0: (-15, 1)}) == 143
    assert launch.exit_code({}) == 1


def test_ticks_cover_the_range() -> None:
    for low, high in [(0.0, 1.0), (3.2, 3.9), (0.0, 12345.0), (-1.0, 1.0), (2.0, 2.0)]:
        values = ticks(low, high, 5)
        assert values[0] <= low
        assert values[-1] >= high
        assert 2 <= len(values) <= 8
