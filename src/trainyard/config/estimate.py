"""Estimates the cost of a run before it starts: seconds and GPU hours from settings, numbers of images and a rate.

Pure functions; `src/trainyard/cluster/cost.py` prints what they give, and the report compares it with what was used.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from trainyard.config.settings import Config

# Where a run that was measured does not say it
VALIDATES = 3.0  # a validation's images per second over training's: a forward is about a third of a step's arithmetic
REST = 120.0  # seconds to start, for checkpoints that training waits for, and to publish


class Rate(NamedTuple):
    """Images per second of one GPU, in training, with where the figure is from."""

    images: float
    source: str


_EXAMPLES = "NVIDIA DeepLearningExamples, ResNet50v1.5, PyTorch AMP"
_CEILING = "MXNet with kernels of its own: a ceiling, not what PyTorch reaches"
# By the name of a GPU; training ResNet-50 at 224 pixels. None was measured by this project.
PUBLISHED = {
    "A100": Rate(2_078, f"{_EXAMPLES}: 16,621 on 8 A100 of 80 GB"),
    "A100-single": Rate(2_470, f"{_EXAMPLES}: 1 A100 of 80 GB"),
    "A100-mlperf": Rate(3_574, f"MLPerf Training v3.0: 28,591 on 8 A100; {_CEILING}"),
    "H100-mlperf": Rate(7_162, f"MLPerf Training v4.0: 57,295 on 8 H100; {_CEILING}"),
    "H200-mlperf": Rate(7_950, f"MLPerf Training v4.0: 63,599 on 8 H200; {_CEILING}"),
    "RTX3090": Rate(1_218, "timm's benchmark tables, AMP, channels_last"),
}
PUBLISHED_MODELS, PUBLISHED_SIZE = ("resnet50", "torchvision:resnet50"), 224
IMAGENET = (1_281_167, 50_000)  # ILSVRC 2012: train, val


@dataclass(frozen=True)
class CostWork:
    """The work of a run: optimizer steps, samples trained on, validations, and samples of all of them."""

    steps: int
    trained: int
    validations: int
    validated: int


@dataclass(frozen=True)
class Expected:
    """Seconds of a run by part, and the GPUs (without GPUs: processes) that it holds meanwhile."""

    training: float
    validation: float
    rest: float
    gpus: int
    spare: int = 0  # further GPUs, of pods that wait for another to be lost

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return self.training + self.validation + self.rest

    @property
    def gpu_hours(self) -> float:
        """Hours of one GPU."""
        return hours_of(self.total, self.gpus + self.spare)


def work_of(config: Config, train: int, val: int, batch: int) -> CostWork:
    """Work of a run on `train` and `val` images, with a global batch of `batch`."""
    per_epoch = math.ceil(train / batch)
    steps = config.max_steps or (config.epochs or 0) * per_epoch
    epochs, rest = divmod(steps, per_epoch)
    every = config.validate_.every_epochs
    validations = 1 + ((max(steps, 1) - 1) // per_epoch // every if every else 0)  # the last one is after the last step
    return CostWork(steps, epochs * train + rest * batch, validations, validations * val)


def expect(work: CostWork, gpus: int, rate: float, *, validates: float = VALIDATES, rest: float = REST) -> Expected:
    """Expect the seconds of a run on GPUs of `rate` images per second each; `validates` times that in validation."""
    return Expected(work.trained / (rate * gpus), work.validated / (validates * rate * gpus), rest, gpus)


def hours_of(seconds: float, gpus: int) -> float:
    """GPU hours of `gpus` that are held for so many seconds."""
    return seconds * gpus / 3600
