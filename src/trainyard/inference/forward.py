"""A model over images, each once, for any number of processes.

The images are cut into the same batches on any number of processes, which take them in turn, as in a run's
validation. Each process fills in the rows of its images, and the tables are summed: so the outcome is the same, bit
by bit, for any number of processes on the same kind of device.
"""

import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from trainyard.core.exits import UserError
from trainyard.data import decode
from trainyard.data.loader import Loader
from trainyard.data.sampler import validation_batches
from trainyard.data.transforms import centre, normalizer
from trainyard.inference.inputs import Images, Unreadable
from trainyard.models.described import Description
from trainyard.parallel import cores
from trainyard.parallel.base import Strategy

ROUNDED = {"bf16": torch.bfloat16, "fp16": torch.float16}
SAY_EVERY = 3.0  # seconds
_ADDRESS = re.compile(r" <_io\.BytesIO object at 0x[0-9a-f]+>")  # in Pillow's messages; it differs at every run


@dataclass(frozen=True)
class Outcome:
    """Of each image: the likeliest classes (N, k) and their probabilities (N, k), likeliest first; its loss (N,).

    `failures` says why an image could not be decoded; its row means nothing. A loss without a label is 0.
    """

    guesses: NDArray[np.int64]
    chances: NDArray[np.float64]
    losses: NDArray[np.float64]
    failures: dict[int, str]

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which images the model has seen."""
        mask = np.ones(len(self.losses), dtype=bool)
        mask[list(self.failures)] = False
        return mask


@dataclass(frozen=True)
class Work:
    """How the images are gone through; sizes of batches in images per process and forward."""

    batch: int
    precision: str
    top: int
    workers: int = 0  # decoding threads; 0: this process's share of the cores
    what: str = "evaluate"  # for lines of progress
    failures: dict[int, str] = field(default_factory=dict)


def run(
    model: nn.Module,
    found: Description,
    images: Images,
    labels: NDArray[np.int64] | None,
    *,
    strategy: Strategy,
    work: Work,
) -> Outcome:
    """Go through all images; every process calls it. `model` is the plain one, on the strategy's device."""
    decoder = decode.choose(found.decoder)
    decode.agree(strategy.gather_objects, decoder.description)
    top = min(work.top, len(found.names))
    targets = labels if labels is not None else np.full(images.count, -1, dtype=np.int64)
    loader = Loader(
        images.read,
        _making(found, decoder, work.failures),
        targets,
        found.size,
        workers=work.workers or cores.share(strategy.place.local_world),
        pin=strategy.device.type == "cuda",
        channels_last=found.in_channels_last(strategy.device.type == "cuda"),
        **images.options,
    )
    table = torch.zeros(images.count, 2 * top + 1, dtype=torch.float64)
    forward = _forward(model, found, strategy.device, work.precision)
    mine = validation_batches(images.count, work.batch, strategy.rank, strategy.world)
    said = time.monotonic()
    for number, item in enumerate(loader.batches((0, ids) for ids in mine), 1):
        with torch.inference_mode():  # not around the loader: its threads write to the images outside of that mode
            outputs = forward(item.images.to(strategy.device, non_blocking=True))
            table[torch.from_numpy(item.ids)] = _rows(outputs.double(), item.labels, top)
        if strategy.is_rank0 and time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            print(f"{work.what}: batch {number:,} of {len(mine):,}", file=sys.stderr, flush=True)
    values = strategy.sum(table).numpy()
    failures: dict[int, str] = {}
    for one in strategy.gather_objects(work.failures):
        failures |= one
    guesses, chances = values[:, :top].astype(np.int64), values[:, top : 2 * top]
    return Outcome(guesses, chances, values[:, 2 * top], dict(sorted(failures.items())))


def _rows(outputs: Tensor, labels: Tensor, top: int) -> Tensor:
    """For outputs (N, classes): the likeliest classes, their probabilities, and the loss (N, 2 * top + 1)."""
    best = outputs.topk(top, dim=1)
    chances = outputs.softmax(dim=1).gather(1, best.indices)
    labels = labels.to(outputs.device)
    losses = functional.cross_entropy(outputs, labels.clamp(min=0), reduction="none") * (labels >= 0)
    return torch.cat([best.indices.double(), chances, losses[:, None]], dim=1).cpu()


def _forward(model: nn.Module, found: Description, device: torch.device, precision: str) -> Callable[[Tensor], Tensor]:
    """From uint8 images (N, 3, H, W) to outputs (N, classes), as a run's validation computes them."""
    normalise = normalizer(
        list(found.mean), list(found.std), device, torch.float64 if precision == "fp64" else torch.float32
    )

    def context() -> AbstractContextManager[Any]:
        return torch.autocast(device.type, ROUNDED[precision]) if precision in ROUNDED else nullcontext()

    def forward(images: Tensor) -> Tensor:
        with context():
            outputs: Tensor = model(normalise(images))
        return outputs

    return forward


def _making(found: Description, decoder: decode.Decoder, failures: dict[int, str]) -> Any:
    """Make images as a run's validation does; of one that cannot be made it notes why, and makes a black one."""
    how: Any = found.interpolation

    def make(content: bytes | Unreadable, sample: int, draw: int, out: Tensor) -> Tensor:
        try:
            if isinstance(content, Unreadable):
                raise UserError(content.why)
            return centre(decoder.image(content), found.size, found.resize, how, out)
        except UserError as error:
            failures[sample] = _ADDRESS.sub("", str(error))
            return out.zero_()

    return make


def list_failures(failures: dict[int, str], name: Callable[[int], str], most: int = 20) -> Sequence[str]:
    """Return a line for each image that could not be decoded, `most` of them."""
    lines = [f"{name(sample)}: {why}" for sample, why in list(failures.items())[:most]]
    return [*lines, f"... and {len(failures) - most} more"] if len(failures) > most else lines
