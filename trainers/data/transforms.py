"""From an encoded picture to a uint8 tensor of the size the model wants.

Augmentation is keyed by (seed, epoch, sample), with repeated augmentation also by the copy (`Order.draws`): it does not
matter which process or thread prepares a picture, or when.
Numbers stay uint8 here; normalisation happens on the device, on whole batches.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainers.config.sections.data import Augment
from trainers.data.decode import Picture, cut, resize
from trainers.data.policies import changed

Area = tuple[int, int, int, int]  # top, left, height, width


def random_numbers(seed: int, draw: int, sample: int) -> np.random.Generator:
    """The random numbers that belong to one draw of a sample: the epoch, if each sample comes once per epoch."""
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


def random_area(height: int, width: int, scale: list[float], ratio: list[float], uniform: Callable[..., float]) -> Area:
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


def normalizer(
    mean: list[float], std: list[float], device: torch.device, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """A function that turns a batch of uint8 pictures into normalised numbers on the device."""
    shift = torch.tensor(mean, device=device, dtype=dtype).view(1, 3, 1, 1) * 255
    factor = 1 / (torch.tensor(std, device=device, dtype=dtype).view(1, 3, 1, 1) * 255)
    return lambda pictures: (pictures.to(dtype) - shift) * factor
