"""Generated pictures, ready-made in memory: what a model can do when reading and decoding cost nothing."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

VARIANTS = 64


class Synthetic:
    """A split of generated pictures; each class has its own pattern under noise, so that training can learn it."""

    def __init__(self, samples: int, classes: int, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.classes = classes
        self.labels: NDArray[np.int64] = np.arange(samples, dtype=np.int64) % classes
        self._patterns = torch.randint(64, 192, (min(classes, VARIANTS), 3, 8, 8), generator=generator)
        self._noise = torch.randint(-32, 32, (VARIANTS, 3, size, size), generator=generator)
        self._size = size

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.labels)

    def picture(self, sample: int) -> Tensor:
        """The uint8 picture of a sample."""
        pattern = self._patterns[int(self.labels[sample]) % len(self._patterns)].float()
        large = torch.nn.functional.interpolate(pattern[None], size=(self._size, self._size))[0]
        return (large + self._noise[sample % VARIANTS]).clamp(0, 255).to(torch.uint8)
