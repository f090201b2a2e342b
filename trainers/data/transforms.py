"""From a picture to a uint8 tensor (3, size, size): crops, resizing and augmentation.

Augmentation is a function of (seed, epoch, sample), and of the copy in repeated augmentation (`Order.draws`). It does
not depend on which process or thread prepares a picture, or when. Pixels stay uint8 here; whole batches are normalised
on the device.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainers.config import Config
from trainers.config.sections.data import Augment
from trainers.data.decode import Area, Decoder, Encoded, Filter, Picture
from trainers.data.policies import changed

Make = Callable[[Any, int, int], Tensor]  # (what a dataset holds of a sample, sample, draw) -> (3, size, size), uint8


def training(config: Config, decoder: Decoder) -> Make:
    """Makes training pictures."""

    def make(content: Any, sample: int, draw: int) -> Tensor:
        numbers = random_numbers(config.seed, draw, sample)
        return training_picture(
            decoder.picture(content), config.data.image_size, config.augment, numbers, config.data.mean
        )

    return make


def validation(config: Config, decoder: Decoder) -> Make:
    """Makes validation pictures: the shorter side resized, the centre cut out."""
    size, shorter = config.data.val_sizes

    def make(content: Any, sample: int, draw: int) -> Tensor:
        return centre(decoder.picture(content), size, shorter, config.augment.interpolation)

    return make


def random_numbers(seed: int, draw: int, sample: int) -> np.random.Generator:
    """The random numbers of one draw of a sample; without repeated augmentation, a draw is an epoch."""
    return np.random.Generator(np.random.Philox(key=[(seed << 32) | draw, sample]))


def training_picture(
    source: Picture,
    size: int,
    augment: Augment,
    generator: np.random.Generator,
    mean: Sequence[float] = (0.485, 0.456, 0.406),
) -> Tensor:
    """Crop, flip, change and erase at random; `mean` is the data's mean colour, of numbers from 0 to 1."""
    uniform, how = generator.uniform, augment.interpolation
    if augment.crop == "random_resized":
        height, width = source.shape[1:]
        picture = cut(source, random_area(height, width, augment.scale, augment.ratio, uniform), size, size, how)
    elif augment.crop == "pad":
        padded = functional.pad(resize(source, size, size, how), [augment.pad] * 4)
        top, left = (int(uniform() * (2 * augment.pad + 1)) for _ in range(2))
        picture = padded[:, top : top + size, left : left + size]
    else:
        picture = resize(source, size, size, how)
    picture = picture.flip(2) if uniform() < augment.flip else picture
    return changed(picture, augment, generator, mean)


def random_area(
    height: int, width: int, scale: list[float], ratio: list[float], uniform: Callable[..., float]
) -> tuple[int, int, int, int]:
    """A random area of a picture: a fraction of its size within `scale`, an aspect ratio within `ratio`.

    Ten tries, then the largest centred area whose ratio is allowed, as in torchvision's RandomResizedCrop.
    """
    for _ in range(10):
        area = height * width * uniform(*scale)
        aspect = math.exp(uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(uniform() * (height - h + 1)), int(uniform() * (width - w + 1)), h, w
    if width / height < ratio[0]:
        w, h = width, min(height, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w, h = min(width, round(height * ratio[1])), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def cut(picture: Picture, area: Area, height: int, width: int, how: Filter = "bilinear") -> Tensor:
    """Cut an area of whole pixels out of a picture and resize it with antialiasing."""
    if isinstance(picture, Encoded):
        return picture.cut(area, height, width, how)
    top, left, tall, wide = (int(number) for number in area)
    return resize(picture[:, top : top + tall, left : left + wide], height, width, how)


def resize(picture: Picture, height: int, width: int, how: Filter = "bilinear") -> Tensor:
    """Resize with antialiasing; a tensor of the right size is returned as it is."""
    if isinstance(picture, Encoded):
        return picture.cut((0, 0, *picture.shape[1:]), height, width, how)
    if picture.shape[1:] == (height, width):
        return picture
    batch = picture.unsqueeze(0).contiguous(
        memory_format=torch.channels_last
    )  # uint8 is resized fastest in this layout
    return functional.interpolate(batch, size=(height, width), mode=how, antialias=True).squeeze(0)


def centre(picture: Picture, size: int, shorter: int, how: Filter = "bilinear") -> Tensor:
    """Resize the shorter side to `shorter`, then cut size x size pixels out of the centre."""
    height, width = picture.shape[1:]
    scale = shorter / min(height, width)
    tall, wide = max(shorter, round(height * scale)), max(shorter, round(width * scale))
    top, left = (tall - size) // 2, (wide - size) // 2
    if isinstance(picture, Encoded):
        y, x = height / tall, width / wide
        return picture.cut((top * y, left * x, size * y, size * x), size, size, how, within=False)
    return resize(picture, tall, wide, how)[:, top : top + size, left : left + size]


def normalizer(
    mean: list[float], std: list[float], device: torch.device, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """A function that turns a batch of uint8 pictures into normalised numbers on the device."""
    shift = torch.tensor(mean, device=device, dtype=dtype).view(1, 3, 1, 1) * 255
    factor = 1 / (torch.tensor(std, device=device, dtype=dtype).view(1, 3, 1, 1) * 255)
    return lambda pictures: (pictures.to(dtype) - shift) * factor
