"""Policies against torchvision's and timm's own, pixel by pixel; repeated augmentation against RASampler."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from trainyard.config.sections.data import AugmentSettings
from trainyard.data import augmentation, transforms
from trainyard.data.sampler import Order

pytestmark = pytest.mark.takes(15)

MEAN = (0.485, 0.456, 0.406)
HEIGHT, WIDTH = 37, 44


@pytest.fixture(scope="module")
def picture() -> torch.Tensor:
    """Smooth, so that resampling by other programs comes close, with all values from 0 to 255."""
    generator = torch.Generator().manual_seed(0)
    small = torch.rand(1, 3, 6, 7, generator=generator) * 255
    return torch.nn.functional.interpolate(small, (HEIGHT, WIDTH), mode="bicubic").clamp(0, 255).byte()[0]


@pytest.mark.parametrize(("kind", "wide"), [("TrivialAugmentWide", True), ("RandAugment", False)])
def test_every_operation_at_every_strength_is_torchvisions(kind: str, wide: bool, picture: torch.Tensor) -> None:
    from torchvision.transforms import InterpolationMode, v2  # imported late: it brings torch's compiler

    theirs = getattr(v2, kind)(interpolation=InterpolationMode.BILINEAR)
    table = augmentation.strengths(HEIGHT, WIDTH, wide)
    assert list(table) == list(theirs._AUGMENTATION_SPACE)
    for name, (magnitudes, signed) in theirs._AUGMENTATION_SPACE.items():
        assert (name in augmentation.SIGNED) == signed
        values = magnitudes(31, HEIGHT, WIDTH)
        for bin_ in range(31):
            for sign in (1, -1) if signed else (1,):
                value = 0.0 if values is None else float(values[bin_]) * sign
                expected = theirs._apply_image_or_video_transform(
                    picture, name, value, InterpolationMode.BILINEAR, theirs._fill
                )
                change = augmentation.Change(name, augmentation.strength(name, bin_, table) * sign)
                assert torch.equal(augmentation.apply(picture, change), expected), (name, bin_, sign)


@pytest.mark.parametrize("level", [0.0, 2.5, 6.0, 9.9])  # at 10, Pillow refuses to keep 0 bits
def test_every_increasing_operation_is_timms(level: float, picture: torch.Tensor) -> None:
    from timm.data import auto_augment as timm

    image = Image.fromarray(picture.permute(1, 2, 0).numpy())
    fill = tuple(round(255 * channel) for channel in MEAN)
    assert len(augmentation.INCREASING) == len(timm._RAND_INCREASING_TRANSFORMS)
    for name in augmentation.INCREASING:
        full = {"TranslateX": "TranslateXRel", "TranslateY": "TranslateYRel"}.get(name, name)
        full = f"{name}Increasing" if f"{name}Increasing" in timm._RAND_INCREASING_TRANSFORMS else full
        arguments = timm.LEVEL_TO_ARG[full](level, {}) if timm.LEVEL_TO_ARG[full] else ()
        mine = [augmentation.increasing(name, level, sign, HEIGHT, WIDTH) for sign in (1.0, -1.0)]
        theirs = timm.NAME_TO_OP[full](image, *arguments, fillcolor=fill, resample=Image.Resampling.BILINEAR)
        expected = torch.from_numpy(np.array(theirs)).permute(2, 0, 1).float()
        apart = [(augmentation.apply(picture, change, fill).float() - expected).abs().mean() for change in mine]
        # Pillow works in whole numbers and cuts turned pictures off sharply: another operation is 20 and more apart
        assert float(min(apart)) < 2.0, (name, level, apart)


def test_policies_draw_as_their_sources_do() -> None:
    def draws(count: int, **settings: Any) -> list[list[augmentation.Change]]:
        augment = AugmentSettings(**settings)
        return [augmentation.draw(augment, transforms.random_numbers(1, 0, i), 100, 100) for i in range(count)]

    assert draws(5) == [[]] * 5
    trivial = draws(4000, policy="trivial")
    assert all(len(changes) == 1 for changes in trivial)
    names = Counter(changes[0].name for changes in trivial)
    assert len(names) == 14
    assert max(abs(count - 4000 / 14) for count in names.values()) < 80
    turns = [changes[0].strength for changes in trivial if changes[0].name == "Rotate"]
    assert len({abs(turn) for turn in turns}) == 31
    assert 0.3 < np.mean([turn < 0 for turn in turns]) < 0.7
    rand = draws(500, policy="rand", policy_ops=3, policy_magnitude=9)
    assert all(len(changes) == 3 for changes in rand)
    turns = {abs(c.strength) for changes in rand for c in changes if c.name == "Rotate"}
    assert list(turns) == [pytest.approx(9.0)]
    increasing = draws(4000, policy="rand_increasing", policy_magnitude=6)
    assert np.mean([len(changes) for changes in increasing]) == pytest.approx(
        1.0, abs=0.05
    )  # each with probability 1/2
    turns = [abs(c.strength) for changes in increasing for c in changes if c.name == "Rotate"]
    assert np.mean(turns) == pytest.approx(18.0, abs=0.4)  # 6 of 10, of 30 degrees
    assert np.std(turns) == pytest.approx(1.5, abs=0.3)


def test_rectangles_to_erase_are_torchvisions() -> None:
    """Where torchvision's parameters follow from a size and a ratio, by the same rule; within its bounds otherwise."""
    shares, ratios = [], []
    for sample in range(600):
        area = augmentation.area_to_erase(90, 120, transforms.random_numbers(1, 0, sample))
        assert area is not None
        top, left, height, width = area
        assert 0 <= top <= 90 - height
        assert 0 <= left <= 120 - width
        shares.append(height * width / (90 * 120))
        ratios.append(height / width)
    assert 0.018 < min(shares) < 0.04
    assert 0.28 < max(shares) < 0.34
    assert np.mean(np.log(ratios)) == pytest.approx(np.log(0.3 * 3.3) / 2, abs=0.1)
    # nothing of that ratio fits in
    assert augmentation.area_to_erase(1, 200, transforms.random_numbers(1, 0, 0)) is None


def test_erasing_sets_the_mean_colour_as_often_as_asked(picture: torch.Tensor) -> None:
    colour = torch.tensor([round(255 * channel) for channel in MEAN], dtype=torch.uint8).view(3, 1, 1)
    before = picture.clone()
    erased = 0
    for sample in range(400):
        generator = transforms.random_numbers(1, 0, sample)
        drawn = augmentation.plan(
            AugmentSettings(erase=0.25, flip=0), generator, HEIGHT, WIDTH, augmentation.colour_of(MEAN)
        )
        result = augmentation.apply_changes(picture, drawn)
        apart = (result != picture).any(0)
        erased += bool(apart.any())
        assert torch.equal(result[:, apart], colour.expand(3, HEIGHT, WIDTH)[:, apart])
    assert erased / 400 == pytest.approx(0.25, abs=0.06)
    assert torch.equal(picture, before)
    normal = transforms.normalizer(list(MEAN), [0.229, 0.224, 0.225], torch.device("cpu"), torch.float32)
    assert float(normal(colour.expand(1, 3, 4, 4)).abs().max()) < 0.01


@pytest.mark.parametrize("policy", ["trivial", "rand", "rand_increasing"])
def test_a_picture_depends_on_seed_draw_and_sample_alone(policy: str, picture: torch.Tensor) -> None:
    augment = AugmentSettings(policy=policy, erase=0.5)  # type: ignore[arg-type]

    def make(*key: int) -> bytes:
        return transforms.training_image(picture, 24, augment, transforms.random_numbers(*key)).numpy().tobytes()

    keys = [(seed, draw, sample) for seed in (1, 2) for draw in (0, 1) for sample in range(4)]
    assert [make(*key) for key in keys] == [make(*key) for key in reversed(keys)][::-1]
    assert len({make(*key) for key in keys}) == len(keys)


def positions_of_rasampler(samples: int, world: int, repeats: int, selected: int) -> list[list[int]]:
    """What torchvision's references/classification/ra_sampler.py gives each rank of an unshuffled epoch."""
    indices = [sample for sample in range(samples) for _ in range(repeats)]
    return [indices[rank::world][:selected] for rank in range(world)]


def test_repeats_are_those_of_torchvisions_sampler() -> None:
    """The same samples in the same global batches, each as often, and as many steps."""
    samples, batch, world, repeats = 256, 32, 8, 4
    order = Order(samples, batch, seed=3, repeats=repeats)
    plain = Order(samples, batch, seed=3)
    assert order.steps_per_epoch == plain.steps_per_epoch == 8
    ranks = positions_of_rasampler(samples, world, repeats, samples // world)
    shuffled = np.concatenate([plain.global_batch(step) for step in range(8)])
    for step in range(8):
        share = batch // world
        theirs = [shuffled[i] for rank in ranks for i in rank[step * share : (step + 1) * share]]
        assert Counter(theirs) == Counter(order.global_batch(step).tolist())
        for rank in range(world):  # no process has a sample twice, and no neighbours are copies of one
            assert len(set(order.slice(step, rank, world).tolist())) == share
    seen = Counter(int(i) for step in range(8) for i in order.global_batch(step))
    assert set(seen.values()) == {repeats}
    assert len(seen) == samples // repeats


@pytest.mark.parametrize("unit", [1, 2])
def test_copies_are_augmented_differently_on_any_number_of_processes(unit: int) -> None:
    order = Order(samples=23, batch=8, seed=5, unit=unit, repeats=3)
    for step in range(7):
        whole = list(zip(order.slice(step, 0, 1).tolist(), order.draws(step, 0, 1).tolist(), strict=True))
        assert len(set(whole)) == len(whole) == len(order.global_batch(step))
        assert all(draw // 3 == order.epoch(step) for _, draw in whole)
        for world in (2, 3, 4, 5):
            parts = [
                pair
                for rank in range(world)
                for pair in zip(
                    order.slice(step, rank, world).tolist(), order.draws(step, rank, world).tolist(), strict=True
                )
            ]
            assert parts == whole
    ids = [pair for step in range(3) for pair in zip(order.slice(step, 0, 1), order.draws(step, 0, 1), strict=True)]
    assert len(ids) == len(set(ids)) == 23
    assert order.samples_before(4) == 31


def test_without_repeats_a_draw_is_the_epoch() -> None:
    order = Order(samples=23, batch=8, seed=5)
    assert order.draws(1, 0, 2).tolist() == [0] * 4
    assert order.draws(5, 1, 2).tolist() == [1] * 3
