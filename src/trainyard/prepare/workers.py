"""Makes shards with several threads that take requests from one queue, so that even one shard keeps all of them busy.

Few shards are open at a time, so a kill loses little. Memory is bounded: every thread has one buffer, and only one
thread at a time handles an image larger than that.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext

from trainyard.prepare.decoding import NAMED
from trainyard.prepare.job import Job
from trainyard.prepare.plan import ShardPlan
from trainyard.prepare.progress import ProgressMeter
from trainyard.prepare.ranges import LARGEST_REQUEST, Request
from trainyard.prepare.timing import Spent
from trainyard.prepare.writer import OpenShard

ENDING_SECONDS = 5.0  # for the threads to end after a failure


class _StoppedError(Exception):
    """Another thread failed; this one ends too."""


class Crew:
    """The threads at work, what they share, and what they found."""

    def __init__(self, job: Job, todo: list[ShardPlan], progress: ProgressMeter, spent: Spent) -> None:
        self.job = job
        # Each one a name and a cause
        self.undecodable: list[str] = []
        self._progress, self._spent = progress, spent
        self._tasks = self._all_tasks(todo)
        self._open: set[OpenShard] = set()
        self._lock, self._large = threading.Lock(), threading.Lock()
        self._stop = threading.Event()

    def work(self, threads: int) -> None:
        """Make all shards; after a failure no half-written file is left."""
        pool = ThreadPoolExecutor(threads, thread_name_prefix="shard")
        futures = [pool.submit(self._run) for _ in range(threads)]
        try:
            _wait_for(futures)
        except BaseException:
            self._stop.set()
            self.job.container.source.close()
            pool.shutdown(wait=False, cancel_futures=True)
            # A thread ends at its next request; one that hangs in the network ends with the process
            hanging = wait([future for future in futures if not future.cancelled()], timeout=ENDING_SECONDS).not_done
            for shard in list(self._open):  # a thread that did not hang for ever may close one meanwhile
                shard.remove() if hanging else shard.discard()
            raise
        pool.shutdown()
        for shard in self._open:
            shard.discard()

    def _run(self) -> None:
        """Do one request after the other; the thread that finishes a shard's last request publishes the shard."""
        buffer = memoryview(bytearray(LARGEST_REQUEST))
        while (task := self._next()) is not None:
            shard, request = task
            with self._large if request.large else nullcontext():
                payload, last = shard.fetch(request, buffer)
            self._progress.add(samples=len(request.samples), payload=payload)
            if last:
                self._close(shard)

    def _close(self, shard: OpenShard) -> None:
        """Publish a shard, or record why it was not."""
        published = shard.close()
        with self._lock:
            self._open.discard(shard)
            if not published:
                self.undecodable += [f"{name} ({cause})" for name, cause in shard.undecodable.values()]
        shard.discard()
        self._progress.add(shards=1)

    def _next(self) -> tuple[OpenShard, Request] | None:
        with self._lock:
            if self._stop.is_set():
                raise _StoppedError
            return None if len(self.undecodable) >= NAMED else next(self._tasks, None)

    def _all_tasks(self, todo: list[ShardPlan]) -> Iterator[tuple[OpenShard, Request]]:
        for plan in todo:
            shard = OpenShard(self.job, plan, self._spent)
            self._open.add(shard)
            for request in shard.requests:
                yield shard, request


def _wait_for(futures: list[Future[None]]) -> None:
    """Wait until all are done or one has failed, and raise its error; signals get through meanwhile."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()
