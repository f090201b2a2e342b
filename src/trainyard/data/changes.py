"""An image's changes as the C library takes them (trainyard/native/augment.c): its loops run without Python's lock.

Colours come out as torchvision's functions in `augmentation.py` compute them, bit for bit; images that are turned,
sheared or shifted by parts of a pixel within 1 of 255.
"""

import math
import struct
from typing import NamedTuple

from torch import Tensor

from trainyard import native
from trainyard.data.augmentation import AugmentPlan, Change

_PADDING = (0.0,) * 8  # a step has so many numbers, as in augment.c; so is the order of the steps
_ORDER = (
    "Flip", "Move", "Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "SolarizeAdd",
    "AutoContrast", "Equalize", "Invert", "Erase",
)  # fmt: skip
_CODES = {name: float(code) for code, name in enumerate(_ORDER)}
_RELATIVE = {"Brightness", "Color", "Contrast", "Sharpness"}  # their strength is what is added to a factor of 1


class Steps(NamedTuple):
    """Changes for `trainyard_change`: their numbers (doubles), how many are taken, and the colour that fills."""

    numbers: bytes
    taken: int
    colour: bytes


NOTHING = Steps(b"", 0, bytes(3))


def steps(plan: AugmentPlan, height: int, width: int) -> Steps:
    """Return what the library has to do with an image of this size."""
    rows = [[_CODES["Flip"]]] if plan.flip else []
    rows += [_row(change, height, width, plan.fills) for change in plan.changes if not _is_idle(change)]
    if plan.erased is not None:
        rows.append([_CODES["Erase"], *plan.erased])
    if not rows:
        return NOTHING
    numbers = [number for row in rows for number in (*row, *_PADDING[len(row) :])]
    return Steps(struct.pack(f"{len(numbers)}d", *numbers), len(rows), bytes(plan.colour))


def change(pixels: Tensor, wanted: Steps) -> None:
    """Change pixels (height, width, 3) in place; they must be contiguous."""
    library = native.library()
    assert library is not None, "only decode.Encoded calls this"
    height, width = pixels.shape[:2]
    if library.trainyard_change(pixels.data_ptr(), height, width, *wanted):
        raise MemoryError(f"an image of {height} x {width} pixels cannot be changed")


def _is_idle(change: Change) -> bool:
    return change.name == "Identity" or (change.name == "Solarize" and change.strength > 1)


def _row(change: Change, height: int, width: int, fills: bool) -> list[float]:
    name, value = change
    if name in _CODES:
        value = 1.0 + value if name in _RELATIVE else 255.0 * value if name == "Solarize" else value
        return [_CODES[name], value]
    return [_CODES["Move"], *matrix(change, height, width), float(fills)]


def matrix(change: Change, height: int, width: int) -> tuple[float, ...]:
    """From where a turned, sheared or shifted pixel comes: (a, b, c, d, e, f) for (a x + b y + c, d x + e y + f).

    Both places are counted from the image's centre. Shearing keeps the upper left corner, as torchvision does.
    """
    name, value = change
    if name == "Rotate":
        angle = math.radians(value)
        return math.cos(angle), -math.sin(angle), 0.0, math.sin(angle), math.cos(angle), 0.0
    places = {
        "ShearX": (1.0, value, value * height / 2, 0.0, 1.0, 0.0),
        "ShearY": (1.0, 0.0, 0.0, value, 1.0, value * width / 2),
        "TranslateX": (1.0, 0.0, -value, 0.0, 1.0, 0.0),
        "TranslateY": (1.0, 0.0, 0.0, 0.0, 1.0, -value),
    }
    return places[name]
