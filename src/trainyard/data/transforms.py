"""From an image to a uint8 tensor (3, size, size): crops, resizing and augmentation.

Augmentation is a function of (seed, epoch, sample), and of the copy in repeated augmentation (`Order.draws`). It does
not depend on which process or thread prepares an image, or when. Pixels stay uint8 here; whole batches are normalised
on the device.
"""

import math
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainyard.config.sections.data import AugmentSettings, DataSettings
from trainyard.data import user
from trainyard.data.augmentation import Colour, apply_changes, colour_of, plan
from trainyard.data.changes import steps
from trainyard.data.decode import AnyImage, Area, Decoder, Encoded, Filter

# Times as long as wide: of a longer image only the middle is resized. Whole, 1 x 65,535 pixels take 13 GB at 256
LONG = 256


class Make(Protocol):
    """Makes an image (3, size, size), uint8: writes it to `out`, which it returns then, or returns another tensor."""

    def __call__(self, content: Any, sample: int, draw: int, out: Tensor) -> Tensor:
        """`content`: what a dataset holds of the sample; `draw`: the key of its augmentation."""


def training(data: DataSettings, augment: AugmentSettings, seed: int, decoder: Decoder) -> Make:
    """Make training images."""
    numbers, colour = RandomNumbers(seed), colour_of(data.mean)
    own = user.augmentation(augment.function) if augment.function else None

    def make(content: Any, sample: int, draw: int, out: Tensor) -> Tensor:
        generator = numbers.of(draw, sample)
        image = decoder.image(content)
        made = training_image(image, out.size(-1), augment, generator, colour, out)
        return own(made, generator) if own else made

    return make


def validation(data: DataSettings, augment: AugmentSettings, decoder: Decoder) -> Make:
    """Make validation images: the shorter side resized, the centre cut out."""
    size, shorter = data.val_sizes

    def make(content: Any, sample: int, draw: int, out: Tensor) -> Tensor:
        return centre(decoder.image(content), size, shorter, augment.interpolation, out)

    return make


def random_numbers(seed: int, draw: int, sample: int) -> np.random.Generator:
    """Return the random numbers of one draw of a sample; without repeated augmentation, a draw is an epoch."""
    return np.random.Generator(np.random.Philox(key=[(seed << 32) | draw, sample]))


class RandomNumbers:
    """The same as `random_numbers`, in a tenth of the time: each thread has one generator, whose state `of` sets."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own = threading.local()

    def of(self, draw: int, sample: int) -> np.random.Generator:
        """Return the random numbers of one draw of a sample; valid until this thread asks for the next ones."""
        own = self._own.__dict__
        if not own:
            own["generator"] = random_numbers(self._seed, 0, 0)
            own["state"] = own["generator"].bit_generator.state
        state = own["state"]
        state["state"]["key"][:] = ((self._seed << 32) | draw, sample)
        own["generator"].bit_generator.state = state
        generator: np.random.Generator = own["generator"]
        return generator


def training_image(  # noqa: PLR0917
    source: AnyImage,
    size: int,
    augment: AugmentSettings,
    generator: np.random.Generator,
    colour: Colour = (0, 0, 0),
    out: Tensor | None = None,
) -> Tensor:
    """Crop, flip, change and erase at random; erased areas get `colour`.

    What the library changes is written to `out`.
    """
    how, (height, width) = augment.interpolation, source.shape[1:]
    area = (0, 0, height, width)
    if augment.crop == "random_resized":
        area = random_area(height, width, augment.scale, augment.ratio, generator.random)
    elif augment.crop == "pad":
        top, left = (int(generator.random() * (2 * augment.pad + 1)) for _ in range(2))
        image = pad_and_crop(resize(source, size, size, how), augment.pad, top, left)
        source = Encoded(pixels=image) if isinstance(source, Encoded) else image
        area = (0, 0, size, size)
    wanted = plan(augment, generator, size, size, colour)
    if isinstance(source, Encoded):
        return source.cut(area, size, size, how, wanted=steps(wanted, size, size), out=out)
    return apply_changes(cut(source, area, size, size, how), wanted)


def pad_and_crop(image: Tensor, pad: int, top: int, left: int) -> Tensor:
    """Put black pixels around an image, then cut its own size out of that."""
    height, width = image.shape[1:]
    return functional.pad(image, [pad] * 4)[:, top : top + height, left : left + width]


def random_area(
    height: int, width: int, scale: list[float], ratio: list[float], random: Callable[[], float]
) -> tuple[int, int, int, int]:
    """Return a random area of an image: a fraction of its size within `scale`, an aspect ratio within `ratio`.

    Ten tries, then the largest centred area whose ratio is allowed, as in torchvision's RandomResizedCrop. `random`
    gives numbers from 0 to 1.
    """
    least, most = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * random())
        aspect = math.exp(least + (most - least) * random())
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(random() * (height - h + 1)), int(random() * (width - w + 1)), h, w
    if width / height < ratio[0]:
        w, h = width, min(height, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w, h = min(width, round(height * ratio[1])), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def cut(image: AnyImage, area: Area, height: int, width: int, how: Filter = "bilinear") -> Tensor:
    """Cut an area of whole pixels out of an image and resize it with antialiasing."""
    if isinstance(image, Encoded):
        return image.cut(area, height, width, how)
    top, left, tall, wide = (int(number) for number in area)
    return resize(image[:, top : top + tall, left : left + wide], height, width, how)


def resize(image: AnyImage, height: int, width: int, how: Filter = "bilinear") -> Tensor:
    """Resize with antialiasing; a tensor of the right size is returned as it is."""
    if isinstance(image, Encoded):
        return image.cut((0, 0, *image.shape[1:]), height, width, how)
    if image.shape[1:] == (height, width):
        return image
    batch = image.unsqueeze(0).contiguous(memory_format=torch.channels_last)  # uint8 is resized fastest in this layout
    return functional.interpolate(batch, size=(height, width), mode=how, antialias=True).squeeze(0)


def centre(image: AnyImage, size: int, shorter: int, how: Filter = "bilinear", out: Tensor | None = None) -> Tensor:
    """Resize the shorter side to `shorter`, then cut size x size pixels out of the centre, to `out` if in C."""
    height, width = image.shape[1:]
    scale = shorter / min(height, width)
    tall, wide = max(shorter, round(height * scale)), max(shorter, round(width * scale))
    if not isinstance(image, Encoded) and max(tall, wide) > LONG * shorter:
        return centre(_middle(image), size, shorter, how)
    top, left = (tall - size) // 2, (wide - size) // 2
    if isinstance(image, Encoded):
        y, x = height / tall, width / wide
        return image.cut((top * y, left * x, size * y, size * x), size, size, how, within=False, out=out)
    return resize(image, tall, wide, how)[:, top : top + size, left : left + size]


def _middle(image: Tensor) -> Tensor:
    """Return the middle of a strip, with more around its centre than any filter reaches."""
    height, width = image.shape[1:]
    top, left = (max(0, side - 16 * min(height, width)) // 2 for side in (height, width))
    return image[:, top : height - top, left : width - left]


def normalizer(
    mean: list[float], std: list[float], device: torch.device, dtype: torch.dtype, out: torch.dtype | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a function that turns a batch of uint8 images into normalised numbers on the device.

    They are computed in `dtype`. With `out` they are rounded to that in the same pass over memory: one kernel reads a
    byte and writes two, where three would read and write 4 bytes each, and a fourth would round.
    """
    shift, scale = (torch.tensor(values, dtype=dtype).view(1, 3, 1, 1).to(device) * 255 for values in (mean, std))
    factor = 1 / scale
    if out is None:
        return lambda images: (images.to(dtype) - shift) * factor
    begin = -shift * factor
    return lambda images: torch.addcmul(begin, images, factor, out=torch.empty_like(images, dtype=out))
