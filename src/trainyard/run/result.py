"""The result of a validation, and its confusion counts on disk."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from trainyard.core.storage import storage


@dataclass(frozen=True)
class Counts:
    """How many samples there were and how many were right, by the first guess and by five, and their mean loss."""

    samples: int
    correct1: int
    correct5: int
    loss: float

    @property
    def top1(self) -> float:
        """Share of samples whose first guess is right."""
        return 100 * self.correct1 / self.samples

    @property
    def top5(self) -> float:
        """Share of samples with the right class among the first five guesses."""
        return 100 * self.correct5 / self.samples


@dataclass(frozen=True)
class Result(Counts):
    """The result of a validation; accuracies in percent. `confusion` is (classes, classes) int64, [truth, guess]."""

    confusion: Tensor | None = None


def write_confusion(
    directory: Path, confusion: Tensor, class_names: Sequence[str], staging: Path | None = None
) -> None:
    """Write validation/confusion.npz: `confusion` (classes, classes) counts [truth, guess], `classes` their names."""
    folder = directory / "validation"
    folder.mkdir(exist_ok=True)
    counts = confusion.numpy()
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, confusion=counts.astype(np.min_scalar_type(counts.max())), classes=np.array(class_names, dtype=str)
    )
    storage.write_file(folder / "confusion.npz", buffer.getvalue(), via=staging)
