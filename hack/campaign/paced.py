"""The model and the data of a campaign's run, as a module that pods find in a ConfigMap.

Each step takes PACE seconds, in which it leaves the CPUs free, so that a run lasts through all faults on a machine of
two cores. Where the file FAST is, steps take no longer than they must.
"""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

FAST = Path("/tmp/unpaced")  # on the pod's own disk: it does not hang with the storage
CLASSES, SAMPLES, SIZE = 10, 256, 32


class Images:
    """Random images (3, SIZE, SIZE) in memory, the same in every process, with labels in turn."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.classes = [str(number) for number in range(CLASSES)]
        self._images = torch.randint(0, 256, (SAMPLES, 3, SIZE, SIZE), generator=generator).to(torch.uint8)

    def __len__(self) -> int:
        """Count the samples."""
        return SAMPLES

    def __getitem__(self, sample: int) -> tuple[Tensor, int]:
        """Return an image and its label."""
        return self._images[sample], sample % CLASSES


def data(split: str) -> Images:
    """Return a split."""
    return Images(0 if split == "train" else 1)


class Net(nn.Module):
    """Two convolutions with BatchNorm, and a layer of classes."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.pace = float(os.environ.get("PACE", "0"))
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, classes) of images (batch, 3, height, width)."""
        if self.training and self.pace and not FAST.exists():
            time.sleep(self.pace)
        out: Tensor = self.fc(self.body(x))
        return out
