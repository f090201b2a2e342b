"""Which samples make which step: a pure function of (seed, epoch, position), the same on any number of processes.

The whole split is permuted anew each epoch and cut into global batches; the last one of an epoch may be ragged, and is
kept. Each process takes its slice of the global batch. Because nothing is remembered, resuming needs the step alone.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@functools.lru_cache(maxsize=2)
def permutation(samples: int, seed: int, epoch: int) -> Ids:
    """The order of an epoch's samples."""
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return generator.permutation(samples).astype(np.int64)


@dataclass(frozen=True)
class Order:
    """The global batches of a run, by step (counted from 0)."""

    samples: int
    batch: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps that pass over the split once; the last may be ragged."""
        return -(-self.samples // self.batch)

    def epoch(self, step: int) -> int:
        """The epoch that a step belongs to, counted from 0."""
        return step // self.steps_per_epoch

    def global_batch(self, step: int) -> Ids:
        """Sample ids of a step, over all processes."""
        position = step % self.steps_per_epoch
        order = permutation(self.samples, self.seed, self.epoch(step))
        return order[position * self.batch : (position + 1) * self.batch]

    def slice(self, step: int, rank: int, world: int) -> Ids:
        """Sample ids of a step that one process takes; may be empty on a ragged batch."""
        return np.array_split(self.global_batch(step), world)[rank]

    def samples_before(self, step: int) -> int:
        """Samples seen when `step` steps are done."""
        epochs, position = divmod(step, self.steps_per_epoch)
        return epochs * self.samples + position * self.batch


def validation_batches(samples: int, batch: int, rank: int, world: int) -> list[Ids]:
    """The validation batches of one process.

    The split is cut into the same batches whatever the number of processes, and they are dealt out in turn: every
    sample is measured once, beside the same neighbours, so even the rounding is the same.
    """
    ids = np.arange(samples, dtype=np.int64)
    cuts = [ids[start : start + batch] for start in range(0, samples, batch)]
    return cuts[rank::world]
