"""Mixup and CutMix: images of a step blended with, or patched from, their neighbours; labels become probabilities.

One draw per (seed, step) decides for the whole global batch which of the two is used, how much, and where. Partners are
the neighbours (0, 1), (2, 3), ... of the global batch. Every process's samples and every forward begin at an even
position, so partners are always in the same forward, and the result is the same on any number of processes.

Sources: mixup, arXiv:1710.09412; CutMix, arXiv:1905.04899; lambda and box as in torchvision's v2 MixUp and CutMix.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainyard.config.sections.data import AugmentSettings

Box = tuple[int, int, int, int]  # left, top, right, bottom
NO_EPOCH = 2**32 - 1  # takes the place of an epoch in the key, so that these draws differ from every sample's


@dataclass(frozen=True)
class Draw:
    """A step's draw: mixup with share `own`, or CutMix where there is a box."""

    own: float
    box: Box | None


def mixes(augment: AugmentSettings) -> bool:
    """Whether images are mixed at all."""
    return augment.mixup > 0 or augment.cutmix > 0


def draw(augment: AugmentSettings, seed: int, step: int, height: int, width: int) -> Draw:
    """Return the draw of a step; with both on, each is as likely as the other. `own` is the share an image keeps."""
    generator = np.random.Generator(np.random.Philox(key=[(seed << 32) | NO_EPOCH, step]))
    patch = generator.uniform() < 0.5 if augment.mixup and augment.cutmix else bool(augment.cutmix)
    alpha = augment.cutmix if patch else augment.mixup
    own = float(generator.beta(alpha, alpha))
    if not patch:
        return Draw(own, None)
    x, y = int(generator.integers(width)), int(generator.integers(height))
    box = box_around(x, y, own, height, width)
    left, top, right, bottom = box
    return Draw(1.0 - (right - left) * (bottom - top) / (width * height), box)


def box_around(x: int, y: int, own: float, height: int, width: int) -> Box:
    """Return the box of share 1 - own around a point, cut off at the image's edges."""
    half = 0.5 * math.sqrt(1.0 - own)
    w, h = int(half * width), int(half * height)
    return max(0, x - w), max(0, y - h), min(width, x + w), min(height, y + h)


def mix(  # noqa: PLR0917
    images: Tensor, labels: Tensor, classes: int, augment: AugmentSettings, seed: int, step: int
) -> tuple[Tensor, Tensor]:
    """Mix a forward's normalised images (N, 3, H, W) and labels (N,): images, and probabilities (N, classes).

    The first image must stand at an even position of the global batch. An odd last one has no partner and stays.
    """
    what = draw(augment, seed, step, images.size(-2), images.size(-1))
    targets = one_hot(labels, classes, images.dtype)
    partner = torch.arange(len(labels), device=images.device) ^ 1
    partner = partner.clamp(max=max(0, len(labels) - 1))  # an odd last one is its own partner
    theirs = images[partner]
    if what.box is None:
        mixed = torch.lerp(theirs, images, what.own)
    else:
        left, top, right, bottom = what.box
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = theirs[..., top:bottom, left:right]
    return mixed, torch.lerp(targets[partner], targets, what.own)


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Labels (N,) as probabilities (N, classes), without waiting for the device."""
    zeros = torch.zeros(len(labels), classes, dtype=dtype, device=labels.device)
    return zeros.scatter_(1, labels.unsqueeze(1), 1.0)
