"""Batches prepared ahead by threads of this process.

Decoding and resizing release Python's lock, so threads scale without the copies, the start-up time and the shared
memory that worker processes need. The order of batches is the order of the jobs, whatever thread is done first.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.data.sampler import Ids

Fetch = Callable[[int, int], Tensor]  # (sample, epoch) -> uint8 picture


@dataclass(frozen=True)
class Batch:
    """The samples of one process in one step."""

    ids: Ids
    pictures: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Loader:
    """What is needed to turn sample ids into batches."""

    fetch: Fetch
    labels: NDArray[np.int64]
    size: int
    workers: int
    prefetch: int
    pin: bool

    def batches(self, jobs: Iterable[tuple[Ids | int, Ids]]) -> Iterator[Batch]:
        """Yield a batch for each (draws, ids), in order, keeping `prefetch` of them in the making.

        A draw keys a sample's augmentation beside seed and sample (`Order.draws`): one per sample, or one for all.
        """
        queue: deque[tuple[Batch, list[Future[None]]]] = deque()
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="loader")
        try:
            for draws, ids in jobs:
                queue.append(self._start(pool, np.broadcast_to(draws, len(ids)), ids))
                if len(queue) > self.prefetch:
                    yield _finish(*queue.popleft())
            while queue:
                yield _finish(*queue.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, pool: ThreadPoolExecutor, draws: Ids, ids: Ids) -> tuple[Batch, list[Future[None]]]:
        pictures = torch.empty((len(ids), 3, self.size, self.size), dtype=torch.uint8, pin_memory=self.pin)
        batch = Batch(ids, pictures, torch.from_numpy(self.labels[ids]))
        parts = np.array_split(np.arange(len(ids)), min(self.workers, max(1, len(ids))))
        return batch, [pool.submit(self._fill, batch, draws, part) for part in parts]

    def _fill(self, batch: Batch, draws: Ids, places: NDArray[np.int64]) -> None:
        for place in places:
            batch.pictures[place] = self.fetch(int(batch.ids[place]), int(draws[place]))


def _finish(batch: Batch, parts: list[Future[None]]) -> Batch:
    for part in parts:
        part.result()
    return batch
