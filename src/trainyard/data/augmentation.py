"""Random changes of a training image's shape and colour: TrivialAugment, RandAugment (two kinds) and random erasing.

Operations are drawn from the sample's own random numbers, so they do not depend on the process that prepares the
image. Pixels are computed in C where the decoder is `native` (`trainyard.data.changes`), else by torchvision's
functions, here. The tables of operations and strengths are those of the sources:

`trivial`  TrivialAugment Wide, arXiv:2103.10158, as torchvision's v2.TrivialAugmentWide: one of 14 operations, one of
           31 strengths, a random sign.
`rand`     RandAugment, arXiv:1909.13719, as torchvision's v2.RandAugment: `policy_ops` of the 14 operations, each at
           strength `policy_magnitude` of 31 (0 to 30), a random sign.
`rand_increasing`  timm's rand-mM-mstd0.5-inc1: `policy_ops` of 15 operations, each done with probability 1/2, at a
           strength from a normal distribution around `policy_magnitude` (0 to 10, standard deviation 0.5); areas that
           become empty get the mean colour. timm rotates and shears with bilinear or bicubic interpolation at
           random, this code always with bilinear.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trainyard.config.sections.data import AugmentSettings

BINS = 31
ERASE_SCALE, ERASE_RATIO = (0.02, 0.33), (0.3, 3.3)
INCREASING = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY",
)  # fmt: skip
SIGNED = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness"}


Colour = tuple[int, ...]  # red, green and blue, from 0 to 255


class Change(NamedTuple):
    """One operation and its strength, in the unit of torchvision's policies."""

    name: str
    strength: float


class AugmentPlan(NamedTuple):
    """The changes of one image: a flip, changes one after the other, and a rectangle that is erased, or None."""

    flip: bool
    changes: list[Change]
    erased: tuple[int, int, int, int] | None  # top, left, height, width
    colour: Colour  # what erased areas get
    fills: bool  # whether areas that a change leaves empty get it, too; else they are black


@functools.cache
def strengths(height: int, width: int, wide: bool) -> dict[str, tuple[float, float]]:
    """For each operation of torchvision's policies, its strength in the first and in the last of 31 bins.

    `wide`: TrivialAugment Wide, else RandAugment. Operations without a strength have (0, 0).
    """
    colour = 0.99 if wide else 0.9
    return {
        "Identity": (0.0, 0.0),
        "ShearX": (0.0, 0.99 if wide else 0.3),
        "ShearY": (0.0, 0.99 if wide else 0.3),
        "TranslateX": (0.0, 32.0 if wide else 150.0 / 331.0 * width),
        "TranslateY": (0.0, 32.0 if wide else 150.0 / 331.0 * height),
        "Rotate": (0.0, 135.0 if wide else 30.0),
        "Brightness": (0.0, colour),
        "Color": (0.0, colour),
        "Contrast": (0.0, colour),
        "Sharpness": (0.0, colour),
        "Posterize": (8.0, 2.0 if wide else 4.0),
        "Solarize": (1.0, 0.0),
        "AutoContrast": (0.0, 0.0),
        "Equalize": (0.0, 0.0),
    }


@functools.cache
def bins(first: float, last: float) -> list[float]:
    """Return the strengths of all bins, in fp32 as in torchvision: a threshold may equal a pixel's value."""
    return [float(value) for value in torch.linspace(first, last, BINS)]


def strength(name: str, bin_: int, table: dict[str, tuple[float, float]]) -> float:
    """Return the strength of an operation in a bin, without its sign; bits and pixels are whole numbers."""
    value = bins(*table[name])[bin_]
    whole = round if name == "Posterize" else int if name.startswith("Translate") else float
    return float(whole(value))


def draw(augment: AugmentSettings, generator: np.random.Generator, height: int, width: int) -> list[Change]:
    """Return the operations for one image, in their order."""
    if augment.policy == "none":
        return []
    if augment.policy == "rand_increasing":
        return _draw_increasing(augment, generator, height, width)
    trivial = augment.policy == "trivial"
    table = strengths(height, width, wide=trivial)
    names = list(table)
    changes = []
    for _ in range(1 if trivial else augment.policy_ops):
        name = names[int(generator.integers(len(names)))]
        bin_ = int(generator.integers(BINS)) if trivial else augment.policy_magnitude
        changes.append(Change(name, _signed(name, strength(name, bin_, table), generator)))
    return changes


def _draw_increasing(augment: AugmentSettings, generator: np.random.Generator, height: int, width: int) -> list[Change]:
    changes = []
    for index in [int(generator.integers(len(INCREASING))) for _ in range(augment.policy_ops)]:
        level = min(10.0, max(0.0, generator.normal(augment.policy_magnitude, 0.5)))
        wanted = generator.random() < 0.5
        change = Change(INCREASING[index], _signed(INCREASING[index], 1.0, generator))
        if wanted:
            changes.append(increasing(change.name, level, change.strength, height, width))
    return changes


def increasing(name: str, level: float, sign: float, height: int, width: int) -> Change:
    """Return an operation of `rand_increasing` at a level between 0 and 10."""
    share = level / 10
    value = {
        "Rotate": 30.0 * share * sign,
        "ShearX": 0.3 * share * sign,
        "ShearY": 0.3 * share * sign,
        "TranslateX": 0.45 * share * width * sign,
        "TranslateY": 0.45 * share * height * sign,
        "Posterize": float(4 - int(share * 4)),
        "Solarize": (256 - int(share * 256)) / 255,
        "SolarizeAdd": float(int(share * 110)),
    }.get(name, max(-0.9, 0.9 * share * sign) if name in SIGNED else 0.0)
    return Change(name, value)


def _signed(name: str, value: float, generator: np.random.Generator) -> float:
    return -value if name in SIGNED and generator.random() < 0.5 else value


def apply(image: Tensor, change: Change, fill: Sequence[float] | None = None) -> Tensor:
    """Apply one operation to a uint8 image (3, H, W); areas that become empty are black, or `fill`."""
    functional = _functional()
    name, value = change
    if name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"):
        return _moved(image, change, fill)
    result: Tensor
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        adjust = functional.adjust_saturation if name == "Color" else getattr(functional, f"adjust_{name.lower()}")
        result = adjust(image, 1.0 + value)
    elif name == "Posterize":
        result = functional.posterize(image, int(value))
    elif name == "Solarize":
        result = functional.solarize(image, 255.0 * value) if value <= 1 else image
    elif name == "SolarizeAdd":
        result = torch.where(image < 128, (image.int() + int(value)).clamp(max=255).byte(), image)
    else:
        plain = {"AutoContrast": functional.autocontrast, "Equalize": functional.equalize, "Invert": functional.invert}
        result = plain[name](image) if name != "Identity" else image
    return result


def _moved(image: Tensor, change: Change, fill: Sequence[float] | None) -> Tensor:
    functional = _functional()
    name, value = change
    common: dict[str, Any] = {"interpolation": "bilinear", "fill": None if fill is None else list(fill)}
    if name == "Rotate":
        turned: Tensor = functional.rotate(image, value, **common)
        return turned
    degrees = math.degrees(math.atan(value))
    shear = {"ShearX": [degrees, 0.0], "ShearY": [0.0, degrees]}.get(name, [0.0, 0.0])
    move = {"TranslateX": [value, 0.0], "TranslateY": [0.0, value]}.get(name, [0.0, 0.0])
    centre = [0.0, 0.0] if name.startswith("Shear") else None
    moved: Tensor = functional.affine(image, 0.0, move, 1.0, shear, center=centre, **common)
    return moved


def _functional() -> Any:
    from torchvision.transforms import v2

    return v2.functional


def plan(
    augment: AugmentSettings, generator: np.random.Generator, height: int, width: int, colour: Colour
) -> AugmentPlan:
    """Draw what becomes of an image of this size; `colour` is what erased areas get."""
    flip = generator.random() < augment.flip
    changes = draw(augment, generator, height, width)
    erases = augment.erase and generator.random() < augment.erase
    area = area_to_erase(height, width, generator) if erases else None
    return AugmentPlan(flip, changes, area, colour, augment.policy == "rand_increasing")


def apply_changes(image: Tensor, drawn: AugmentPlan) -> Tensor:
    """Return a uint8 image (3, H, W) after its changes, computed by torchvision's functions."""
    image = image.flip(2) if drawn.flip else image
    for change in drawn.changes:
        image = apply(image, change, drawn.colour if drawn.fills else None)
    return image if drawn.erased is None else erase(image, drawn.erased, drawn.colour)


def colour_of(mean: Sequence[float]) -> Colour:
    """Return the data's mean, of numbers from 0 to 1, as the colour that is nearest to it."""
    return tuple(min(255, max(0, round(255 * channel))) for channel in mean)


def area_to_erase(height: int, width: int, generator: np.random.Generator) -> tuple[int, int, int, int] | None:
    """Top, left, height and width of a random rectangle of 2 to 33 % of the image, aspect ratio 0.3 to 3.3.

    arXiv:1708.04896, as torchvision's RandomErasing: ten tries to find one smaller than the image, else none.
    """
    (least, most), (low, high) = ERASE_SCALE, map(math.log, ERASE_RATIO)
    for _ in range(10):
        area = height * width * (least + (most - least) * generator.random())
        aspect = math.exp(low + (high - low) * generator.random())
        tall, wide = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if tall < height and wide < width:
            return int(generator.integers(height - tall + 1)), int(generator.integers(width - wide + 1)), tall, wide
    return None


def erase(image: Tensor, area: tuple[int, int, int, int], colour: Sequence[float]) -> Tensor:
    """Set a rectangle to a colour: the mean, which is 0 once the image is normalised (to half a step of uint8)."""
    top, left, tall, wide = area
    result = image.clone()
    result[:, top : top + tall, left : left + wide] = torch.tensor(colour, dtype=image.dtype).view(3, 1, 1)
    return result
