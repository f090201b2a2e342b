"""From an encoded picture to a uint8 tensor of the size the model wants.

Augmentation is keyed by (seed, epoch, sample): it does not matter which process or thread prepares a picture, or when.
Numbers stay uint8 here; normalisation happens on the device, on whole batches.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from trainers.exits import UserError
from trainers.settings import Augment

Area = tuple[int, int, int, int]  # top, left, height, width


# torchvision's decoders release Python's lock for all of their work; a release to come will drop them.
decode_image: Any = None
with contextlib.suppress(ImportError):
    from torchvision.io import ImageReadMode, decode_image
warnings.filterwarnings("ignore", message="The image decoding and encoding capabilities of TorchVision are deprecated")


def decode(data: bytes) -> Tensor:
    """Decode a picture to RGB, shape (3, height, width); Pillow reads what torchvision cannot (CMYK, odd PNGs)."""
    if decode_image is None:
        return _decode_with_pillow(data)
    try:
        picture: Tensor = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
    except RuntimeError:
        return _decode_with_pillow(data)
    return picture


def _decode_with_pillow(data: bytes) -> Tensor:
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).contiguous()
    except (OSError, ValueError) as error:
        raise UserError(f"a picture cannot be decoded ({error}); repair or leave out that sample") from error


def random_numbers(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """The random numbers that belong to one sample in one epoch."""
    return np.random.Generator(np.random.Philox(key=[(seed << 32) | epoch, sample]))


def training_picture(picture: Tensor, size: int, augment: Augment, generator: np.random.Generator) -> Tensor:
    """Crop and flip a picture at random."""
    uniform = generator.uniform
    if augment.crop == "random_resized":
        height, width = picture.shape[1:]
        picture = resize(crop(picture, random_area(height, width, augment.scale, augment.ratio, uniform)), size, size)
    elif augment.crop == "pad":
        padded = functional.pad(resize(picture, size, size), [augment.pad] * 4)
        top, left = (int(uniform() * (2 * augment.pad + 1)) for _ in range(2))
        picture = crop(padded, (top, left, size, size))
    else:
        picture = resize(picture, size, size)
    return picture.flip(2) if uniform() < augment.flip else picture


def validation_picture(picture: Tensor, size: int, shorter: int) -> Tensor:
    """Resize the shorter side, then cut the centre out."""
    height, width = picture.shape[1:]
    scale = shorter / min(height, width)
    picture = resize(picture, max(shorter, round(height * scale)), max(shorter, round(width * scale)))
    height, width = picture.shape[1:]
    return crop(picture, ((height - size) // 2, (width - size) // 2, size, size))


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


def crop(picture: Tensor, area: Area) -> Tensor:
    """Cut an area out of a picture."""
    top, left, height, width = area
    return picture[:, top : top + height, left : left + width]


def resize(picture: Tensor, height: int, width: int) -> Tensor:
    """Resize with antialiasing; a picture of the right size is left alone."""
    if picture.shape[1:] == (height, width):
        return picture
    batch = picture.unsqueeze(0).contiguous(memory_format=torch.channels_last)  # the layout uint8 is fast in
    return functional.interpolate(batch, size=(height, width), mode="bilinear", antialias=True).squeeze(0)


def normalizer(
    mean: list[float], std: list[float], device: torch.device, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """A function that turns a batch of uint8 pictures into normalised numbers on the device."""
    shift = torch.tensor(mean, device=device, dtype=dtype).view(1, 3, 1, 1) * 255
    factor = 1 / (torch.tensor(std, device=device, dtype=dtype).view(1, 3, 1, 1) * 255)
    return lambda pictures: (pictures.to(dtype) - shift) * factor
