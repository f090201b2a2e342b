"""Changes in C against torchvision's functions, on thousands of pictures; the same bits everywhere."""

import _ctypes
import ctypes
import hashlib
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from trainyard import native
from trainyard.config.sections.data import AugmentSettings
from trainyard.data import augmentation, changes, decode, transforms
from trainyard.data.augmentation import AugmentPlan, Change

pytestmark = pytest.mark.takes(30)

COLOUR = (124, 116, 104)
MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
# torchvision's sums are rounded once where torch uses fused multiply-add, as the library does on every machine
FUSED = torch.backends.cpu.get_cpu_capability() != "DEFAULT"


def pictures(count: int, seed: int) -> Iterator[Tensor]:
    """Noise, smooth colours, few values, one value; odd sizes, thin ones, and that of training."""
    rng = np.random.Generator(np.random.Philox(key=[seed, 1]))
    for number in range(count):
        height, width = (int(rng.integers(1, 80)) for _ in range(2))
        if number % 25 == 0:
            height, width = 224, 224
        noise = torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8))
        smooth = torch.from_numpy(rng.random((1, 3, 4, 5))) * 320 - 30
        kinds = (
            noise,
            torch.nn.functional.interpolate(smooth, (height, width), mode="bicubic").clamp(0, 255).byte()[0],
            noise % 12 + int(rng.integers(0, 244)),
            torch.full_like(noise, int(rng.integers(256))),
        )
        yield kinds[number % 4]


def plan(
    *wanted: Change, fills: bool = False, flip: bool = False, erased: tuple[int, ...] | None = None
) -> AugmentPlan:
    return AugmentPlan(flip, list(wanted), erased, COLOUR, fills)  # type: ignore[arg-type]


def changed(picture: Tensor, wanted: AugmentPlan, vectors: int = 512) -> Tensor:
    """The picture changed in C, with or without (0) what only some machines have."""
    library = native.library()
    assert library is not None
    pixels = picture.permute(1, 2, 0).contiguous().clone()
    library.trainyard_vectors(vectors)
    changes.change(pixels, changes.steps(wanted, *picture.shape[1:]))
    library.trainyard_vectors(512)
    return pixels.permute(2, 0, 1)


def apart(picture: Tensor, wanted: AugmentPlan) -> int:
    """The largest difference of a value between C, with or without vectors, and torchvision."""
    expected = augmentation.apply_changes(picture, wanted).int()
    return max(int((changed(picture, wanted, bits).int() - expected).abs().max()) for bits in (512, 0))


@pytest.mark.parametrize("wide", [True, False])
def test_torchvisions_operations_on_random_pictures(wide: bool) -> None:
    """Colours to the last bit; bilinear pixels, which torch computes in floats of each machine's own, within 1."""
    rng = np.random.Generator(np.random.Philox(key=[int(wide), 2]))
    for picture in pictures(100, seed=int(wide)):
        table = augmentation.strengths(*picture.shape[1:], wide)
        for name in table:
            sign = -1 if name in augmentation.SIGNED and rng.random() < 0.5 else 1
            change = Change(name, augmentation.strength(name, int(rng.integers(31)), table) * sign)
            most = int(name in MOVES or not FUSED)
            assert apart(picture, plan(change)) <= most, (change, picture.shape)


def test_increasing_operations_on_random_pictures() -> None:
    rng = np.random.Generator(np.random.Philox(key=[3, 3]))
    for picture in pictures(100, seed=7):
        for name in augmentation.INCREASING:
            height, width = picture.shape[1:]
            change = augmentation.increasing(name, float(rng.uniform(0, 10)), float(rng.choice([-1, 1])), height, width)
            most = int(name in MOVES or not FUSED)
            assert apart(picture, plan(change, fills=True)) <= most, (change, picture.shape)


def test_a_flip_and_a_rectangle_are_exact() -> None:
    rng = np.random.Generator(np.random.Philox(key=[4, 4]))
    for picture in pictures(200, seed=8):
        height, width = picture.shape[1:]
        tall, wide = int(rng.integers(0, height + 1)), int(rng.integers(0, width + 1))
        area = int(rng.integers(height - tall + 1)), int(rng.integers(width - wide + 1)), tall, wide
        assert apart(picture, plan(flip=True, erased=area)) == 0
        assert apart(picture, plan(Change("Invert", 0.0), flip=bool(height % 2), erased=area)) == 0


@pytest.mark.parametrize("bits", [512, 0], ids=["vectors", "plain"])
def test_whole_pixels_and_right_angles_are_exact(bits: int) -> None:
    for picture in pictures(40, seed=9):
        height, width = picture.shape[1:]
        turned = {0.0: 0, 180.0: 2, -180.0: 2, **({90.0: 1, -90.0: 3} if height == width else {})}
        for degrees, turns in turned.items():
            expected = torch.rot90(picture, turns, (1, 2))
            assert torch.equal(changed(picture, plan(Change("Rotate", degrees)), bits), expected), degrees
        for shift in (0, 1, width // 2, width):
            expected = torch.zeros_like(picture)
            expected[:, :, shift:] = picture[:, :, : width - shift]
            assert torch.equal(changed(picture, plan(Change("TranslateX", float(shift))), bits), expected)
            assert torch.equal(
                changed(picture, plan(Change("TranslateX", -float(shift)), flip=True), bits).flip(2), expected
            )


def test_vectors_and_plain_c_give_the_same_bits_and_they_stay_so() -> None:
    """One digest for every machine; it changes only when a release's pictures are meant to change."""
    digests = {bits: hashlib.sha256() for bits in (512, 0)}
    for number, picture in enumerate(pictures(100, seed=11)):
        pixels = (torch.arange(picture.numel()) * (number * 2 + 7) % 251).to(torch.uint8).view_as(picture)
        for policy in ("trivial", "rand", "rand_increasing"):
            augment = AugmentSettings(policy=policy, erase=0.5, policy_ops=3, policy_magnitude=8)  # type: ignore[arg-type]
            wanted = augmentation.plan(augment, transforms.random_numbers(1, 2, number), *picture.shape[1:], COLOUR)
            for bits, digest in digests.items():
                digest.update(changed(pixels, wanted, bits).contiguous().numpy().tobytes())
    assert [digest.hexdigest()[:16] for digest in digests.values()] == ["cbe09fe84f8c9f9c"] * 2


@pytest.mark.parametrize(
    "step",
    [
        [-1.0], [13.0], [5.5], [math.nan],
        [1.0, 17, 0, 0, 0, 1, 0], [1.0, math.nan, 0, 0, 0, 1, 0], [1.0, 1, 0, 2e6, 0, 1, 0],
        [2.0, math.inf], [3.0, -2e3], [6.0, 9.0], [6.0, -1.0], [8.0, 256.0],
        [12.0, 0, 0, 9, 1], [12.0, 3, 0, 6, 1], [12.0, 0, -1, 1, 1], [12.0, 0, 0, math.nan, 1],
    ],
)  # fmt: skip
def test_numbers_of_no_step_are_refused_and_nothing_is_written(step: list[float]) -> None:
    pixels = torch.full((8, 9, 3), 77, dtype=torch.uint8)
    numbers = (ctypes.c_double * 16)(11.0, *[0.0] * 7, *step)  # an inversion first
    with pytest.raises(MemoryError, match="8 x 9"):
        changes.change(pixels, changes.Steps(bytes(numbers), 2, bytes(3)))
    assert pixels.unique().tolist() == [77]


def test_processes_compare_what_augments_them() -> None:
    """Both compute other pixels, so that one name must not stand for both."""
    names = {name: decode.choose(name).description for name in ("native", "torchvision", "pillow")}
    assert "augmented by native " in names["native"]
    assert all("augmented by torchvision 0." in names[name] for name in ("torchvision", "pillow"))


def test_python_is_free_while_the_library_works() -> None:
    library = native.library()
    assert library is not None
    for function in (library.trainyard_make, library.trainyard_change):
        assert not function._flags_ & _ctypes.FUNCFLAG_PYTHONAPI  # type: ignore[attr-defined]


@cache
def squares() -> list[Tensor]:
    return [picture for picture in pictures(400, seed=12) if picture.shape[1] == picture.shape[2]]


@pytest.mark.parametrize("crop", ["random_resized", "pad", "none"])
@pytest.mark.parametrize("policy", ["none", "trivial", "rand", "rand_increasing"])
def test_a_training_image_is_the_same_in_c_and_in_python(policy: str, crop: str) -> None:
    """With the same draws: from a picture that needs no resizing, since decoders differ there."""
    augment = AugmentSettings(policy=policy, crop=crop, erase=0.5, policy_ops=1, scale=[1, 1], ratio=[1, 1])  # type: ignore[arg-type]
    for sample, picture in enumerate(squares()):
        size = picture.shape[1]
        numbers = [transforms.random_numbers(1, 0, sample) for _ in range(3)]
        theirs = transforms.training_image(picture, size, augment, numbers[0], COLOUR)
        source = decode.Encoded(pixels=picture)
        for layout, generator in zip((torch.contiguous_format, torch.channels_last), numbers[1:], strict=True):
            out = torch.zeros((1, 3, size, size), dtype=torch.uint8).contiguous(memory_format=layout)[0]
            mine = transforms.training_image(source, size, augment, generator, COLOUR, out)
            assert mine is out
            assert int((mine.int() - theirs.int()).abs().max()) <= (policy != "none")


def test_a_thread_has_its_own_numbers_which_are_those_of_the_sample() -> None:
    numbers, begun = transforms.RandomNumbers(seed=9), threading.Barrier(3)

    def drawn(generator: np.random.Generator, sample: int) -> list[float]:
        whole = [int(generator.integers(15)) for _ in range(sample % 5)]  # leaves half of a word over, or none
        return [*whole, generator.normal(), *(generator.random() for _ in range(sample % 7))]

    def draw_all(thread: int) -> list[list[float]]:
        begun.wait()
        return [drawn(numbers.of(draw, sample), sample) for sample in range(thread, 90, 3) for draw in range(3)]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(draw_all, range(3)))
    for thread in range(3):
        keys = [(draw, sample) for sample in range(thread, 90, 3) for draw in range(3)]
        assert found[thread] == [drawn(transforms.random_numbers(9, *key), key[1]) for key in keys]
