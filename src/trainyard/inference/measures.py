"""Metrics of an evaluation: accuracy, per class too, calibration, confusion."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.inference.forward import Outcome
from trainyard.run.result import Counts

BINS = 15


@dataclass(frozen=True)
class Bin:
    """Images whose first guess has a probability above `low`, up to `high`; means over them, 0 without any."""

    low: float
    high: float
    samples: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Measured(Counts):
    """Numbers over all images; `confusion` (classes, classes) counts [truth, guess]. Accuracies are in percent."""

    ece: float
    bins: list[Bin]
    confusion: NDArray[np.int64]

    def recall(self, index: int) -> float | None:
        """Of the images of a class, the share that was found, in percent; None without any."""
        return _share(self.confusion[index, index], self.confusion[index].sum())

    def precision(self, index: int) -> float | None:
        """Of the images predicted as a class, the share that is of it, in percent; None without any."""
        return _share(self.confusion[index, index], self.confusion[:, index].sum())


def measure(outcome: Outcome, labels: NDArray[np.int64], classes: int) -> Measured:
    """Measure an outcome in which every image was seen."""
    first = outcome.guesses[:, 0]
    right = first == labels
    confusion = np.bincount(labels * classes + first, minlength=classes**2).reshape(classes, classes)
    bins = calibration(outcome.chances[:, 0], right)
    return Measured(
        samples=len(labels),
        correct1=int(right.sum()),
        correct5=int((outcome.guesses[:, :5] == labels[:, None]).any(axis=1).sum()),
        loss=float(outcome.losses.mean()),
        ece=sum(one.samples * abs(one.accuracy - one.confidence) for one in bins) / len(labels),
        bins=bins,
        confusion=confusion.astype(np.int64),
    )


def calibration(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> list[Bin]:
    """Bins of equal width over the probability of the first guess.

    The expected calibration error is the mean of |accuracy - confidence| over them, weighted by their samples
    (C. Guo et al., "On Calibration of Modern Neural Networks", arXiv:1706.04599, equation 3, with their 15 bins).
    """
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    bins = []
    for index in range(BINS):
        inside = place == index
        count = int(inside.sum())
        mean, accuracy = (float(values[inside].mean()) if count else 0.0 for values in (confidence, right))
        bins.append(Bin(index / BINS, (index + 1) / BINS, count, mean, accuracy))
    return bins


def worst(outcome: Outcome, labels: NDArray[np.int64], most: int) -> list[int]:
    """Numbers of the images that are predicted as another class, those with the highest loss first."""
    order = np.argsort(-outcome.losses, kind="stable")
    wrong = order[outcome.guesses[order, 0] != labels[order]]
    return [int(sample) for sample in wrong[:most]]


def _share(part: int, whole: int) -> float | None:
    return 100 * float(part) / float(whole) if whole else None
