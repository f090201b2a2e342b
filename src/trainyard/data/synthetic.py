"""Generated images in memory, for measuring a model's speed without reading and decoding."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainyard.data.sampler import Ids

VARIANTS = 64


class Synthetic:
    """A split of generated images; each class has a pattern under noise, which training can learn."""

    def __init__(self, samples: int, classes: int, size: int, channels_last: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        form = torch.channels_last if channels_last else torch.contiguous_format
        self.classes = classes
        self.labels: NDArray[np.int64] = np.arange(samples, dtype=np.int64) % classes
        patterns = torch.randint(64, 192, (min(classes, VARIANTS), 3, 8, 8), generator=generator)
        large = torch.nn.functional.interpolate(patterns.to(torch.uint8), size=(size, size))
        noise = torch.randint(-32, 32, (VARIANTS, 3, size, size), generator=generator)
        self._patterns = large.contiguous(memory_format=form)
        self._noise = noise.to(torch.uint8).contiguous(memory_format=form)  # modulo 256, as the sum below

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.labels)

    def read(self, ids: Ids) -> list[Tensor]:
        """Return the uint8 images (3, size, size) of some samples."""
        return [self.image(int(sample)) for sample in ids]

    def image(self, sample: int) -> Tensor:
        """Return the uint8 image of a sample."""
        return self._patterns[int(self.labels[sample]) % len(self._patterns)] + self._noise[sample % VARIANTS]
