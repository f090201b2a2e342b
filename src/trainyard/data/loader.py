"""Batches, prepared ahead by threads of this process.

Reading, decoding, resizing and augmenting release Python's lock, and each image is written to its place in the batch,
which lies in pinned memory for a GPU. So threads scale, without the copies, start-up time and shared memory that worker
processes need. Separate threads read, further ahead than decoding: slow storage gets many requests
early. Batches come in the order of the jobs, whichever thread finishes first.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainyard.core.exits import pinning
from trainyard.data.sampler import Ids
from trainyard.data.transforms import Make

Read = Callable[[Ids], list[Any]]  # ids of one group of `neighbours` -> what is stored of each sample
Item = TypeVar("Item")


@dataclass(frozen=True)
class Batch:
    """The samples of one process in one step: uint8 images (N, 3, size, size) and labels (N,)."""

    ids: Ids
    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class BatchJob:
    """A batch being prepared: threads fill the places of `content` and `images`."""

    ids: Ids
    draws: Ids
    content: list[Any]
    reading: list[Future[None]]
    images: Tensor
    labels: Tensor
    making: list[Future[None]]


@dataclass(frozen=True)
class Loader:
    """Turns sample ids into batches, on threads of its own."""

    read: Read
    make: Make
    labels: NDArray[np.int64]  # of all samples; -1 until a sample is read, if only reading tells
    size: int  # of an image, where `batches` is not given others
    workers: int = 4  # threads that decode
    prefetch: int = 2  # batches decoded ahead
    readers: int = 16  # threads that read
    readahead: int = 1  # batches read ahead of those; 0: the threads that decode read too
    pin: bool = False
    channels_last: bool = False
    neighbours: Callable[[Ids], list[Ids]] = lambda ids: [np.array([place]) for place in range(len(ids))]
    # groups the places of ids by what one read fetches

    def batches(self, jobs: Iterable[tuple[Ids | int, Ids]], sizes: Iterable[int] | None = None) -> Iterator[Batch]:
        """Yield a batch for each (draws, ids), in order; its images have the next of `sizes`, else the loader's.

        With seed and sample id, a draw is the key of a sample's augmentation (`Order.draws`): one for each, or for all.
        """
        sized = zip(itertools.repeat(self.size) if sizes is None else sizes, jobs, strict=False)
        readers = ThreadPoolExecutor(self.readers, thread_name_prefix="reader")
        makers = single_threaded_pool(self.workers)
        try:
            reading = read_ahead((self._begin_reading(readers, size, *job) for size, job in sized), self.readahead)
            for job in read_ahead((self._begin_making(makers, job) for job in reading), self.prefetch):
                for part in job.making:
                    part.result()
                job.labels.copy_(torch.from_numpy(self.labels[job.ids]))  # reading may tell them
                yield Batch(job.ids, job.images, job.labels)
        finally:
            readers.shutdown(wait=False, cancel_futures=True)
            makers.shutdown(wait=True, cancel_futures=True)
            readers.shutdown(wait=True)

    def _begin_reading(self, pool: ThreadPoolExecutor, size: int, draws: Ids | int, ids: Ids) -> BatchJob:
        count = len(ids)
        with pinning():
            images = torch.empty(
                (count, 3, size, size),
                dtype=torch.uint8,
                pin_memory=self.pin,
                memory_format=torch.channels_last if self.channels_last else torch.contiguous_format,
            )
            labels = torch.empty(count, dtype=torch.int64, pin_memory=self.pin)
        job = BatchJob(ids, np.broadcast_to(draws, count), [None] * count, [], images, labels, [])
        if self.readahead:
            groups = self.neighbours(ids)
            for part in np.array_split(np.arange(len(groups)), min(self.readers, len(groups)) or 1):
                job.reading.append(pool.submit(self._read_groups, job, [groups[index] for index in part]))
        return job

    def _begin_making(self, pool: ThreadPoolExecutor, job: BatchJob) -> BatchJob:
        for part in np.array_split(np.arange(len(job.ids)), min(self.workers, max(1, len(job.ids)))):
            job.making.append(pool.submit(self._fill, job, part))
        return job

    def _read_groups(self, job: BatchJob, groups: list[Ids]) -> None:
        for places in groups:
            for place, content in zip(places, self.read(job.ids[places]), strict=True):
                job.content[place] = content

    def _fill(self, job: BatchJob, places: Ids) -> None:
        for part in job.reading:
            part.result()
        if not job.reading:
            self._read_groups(job, [places[group] for group in self.neighbours(job.ids[places])])
        slots = job.images[places[0] : places[-1] + 1].unbind() if len(places) else ()
        for place, out in zip(places.tolist(), slots, strict=True):
            content, job.content[place] = job.content[place], None
            made = self.make(content, int(job.ids[place]), int(job.draws[place]), out)
            if made is not out:
                out.copy_(made)


def single_threaded_pool(count: int) -> ThreadPoolExecutor:
    """Threads in which torch uses one thread only; by default it would start one per core in each of them."""
    usual, begun = torch.get_num_threads(), threading.Barrier(count + 1)

    def begin() -> None:
        torch.get_num_threads()  # a thread reads the global setting when it first asks
        torch.set_num_threads(1)

    pool = ThreadPoolExecutor(count, "loader", initializer=begin)
    for _ in range(count):
        pool.submit(begun.wait)
    begun.wait()
    torch.set_num_threads(usual)
    return pool


def read_ahead(items: Iterator[Item], count: int) -> Iterator[Item]:
    """Yield the items, each drawn `count` items early, so that the work that drawing starts runs in the meantime."""
    drawn: deque[Item] = deque()
    for item in items:
        drawn.append(item)
        if len(drawn) > count:
            yield drawn.popleft()
    while drawn:
        yield drawn.popleft()
