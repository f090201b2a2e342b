"""Which samples make which step: a pure function of (seed, epoch, position), the same on any number of processes.

Each epoch permutes the whole split and cuts it into global batches. The last batch of an epoch may be smaller; it is
kept. Each process takes its slice of the global batch. There is no state, so resuming needs only the step.
"""

import builtins
import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

MOST_PER_LINE = 10  # steps between lines of metrics, and the fewest lines of a run, where no setting says otherwise
FEWEST_LINES = 50


@functools.lru_cache(maxsize=2)
def permutation(samples: int, seed: int, epoch: int) -> Ids:
    """Return the order of an epoch's samples."""
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return generator.permutation(samples).astype(np.int64)


@dataclass(frozen=True)
class Order:
    """The global batches of a run, by step (counted from 0).

    With `unit` 2, slices and forwards begin at even positions of the global batch, so that neighbours stay together.

    With `repeats` R, an epoch repeats each sample of its permutation R times and takes the first `samples` of that: the
    number of steps stays, and 1/R of the samples are used. The copies of a sample, each augmented differently, lie in
    one global batch, or in two. A global batch has all first copies first, then all second ones, so that neighbours,
    and mostly the samples of one process, are different images.

    With `pieces`, a multiple of the processes, each gets as many pieces of the global batch, which are the same on any
    number of processes, and are its forwards: also where a batch does not divide evenly.
    """

    samples: int
    batch: int
    seed: int
    unit: int = 1
    repeats: int = 1
    pieces: int = 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which the split is seen once; the last may have fewer samples."""
        return -(-self.samples // self.batch)

    def epoch(self, step: int) -> int:
        """Return the epoch that a step belongs to, counted from 0."""
        return step // self.steps_per_epoch

    def global_batch(self, step: int) -> Ids:
        """Sample ids of a step, over all processes."""
        places = self._places(step)
        return permutation(self.samples, self.seed, self.epoch(step))[places // self.repeats]

    def slice(self, step: int, rank: int, world: int) -> Ids:
        """Sample ids of one process in a step; may be empty in a small last batch."""
        return self._share(self.global_batch(step), rank, world)

    def draws(self, step: int, rank: int, world: int) -> Ids:
        """For each sample of the slice, the key of its augmentation besides seed and id: epoch * repeats + copy."""
        return self._share(self.epoch(step) * self.repeats + self._places(step) % self.repeats, rank, world)

    def parts(self, count: int, forwards: int) -> list[builtins.slice]:
        """Cut a process's `count` samples into forwards, some of them empty, at multiples of `unit`."""
        units = np.array_split(np.arange(-(-count // self.unit)), forwards)
        ends = np.cumsum([0] + [len(part) for part in units]) * self.unit
        return [builtins.slice(min(count, a), min(count, b)) for a, b in itertools.pairwise(ends.tolist())]

    def samples_before(self, step: int) -> int:
        """Return samples seen when `step` steps are done."""
        epochs, position = divmod(step, self.steps_per_epoch)
        return epochs * self.samples + position * self.batch

    def _places(self, step: int) -> Ids:
        """Places of a step's samples in the epoch's order of all copies."""
        start = step % self.steps_per_epoch * self.batch
        places = np.arange(start, min(start + self.batch, self.samples), dtype=np.int64)
        return places[np.argsort(places % self.repeats, kind="stable")]

    def _share(self, values: Ids, rank: int, world: int) -> Ids:
        """One process's part of a value per sample of the global batch."""
        cuts = np.array_split(np.arange(-(-len(values) // self.unit)), self.pieces or world)
        each = len(cuts) // world
        units = np.concatenate(cuts[rank * each : (rank + 1) * each])
        return values[units[0] * self.unit : (units[-1] + 1) * self.unit] if len(units) else values[:0]


@dataclass(frozen=True)
class Length:
    """How long a run is."""

    steps: int
    steps_per_epoch: int

    @property
    def epochs(self) -> int:
        """Epochs begun when all steps are done."""
        return -(-self.steps // self.steps_per_epoch)

    def steps_per_line(self, asked: int | None) -> int:
        """Return steps between lines of metrics: as asked, or so few that a short run's curves have enough points."""
        return asked or min(MOST_PER_LINE, max(1, self.steps // FEWEST_LINES))


def validation_batches(samples: int, batch: int, rank: int, world: int) -> list[Ids]:
    """Return the validation batches of one process.

    The split is cut into the same batches on any number of processes, which take them in turn. So every sample is
    measured once, in the same batch, and even rounding is the same.
    """
    ids = np.arange(samples, dtype=np.int64)
    cuts = [ids[start : start + batch] for start in range(0, samples, batch)]
    return cuts[rank::world]
