"""Processes on storage that fails at any call, one at a time: what the campaigns drive (test_campaign_*.py).

A process is a thread whose calls on files below one folder are counted. It runs for as many calls as it is told and is
then suspended, so that another may run between any two of its calls. A fault waits for a call: the process dies there,
or in the middle of a write; the call fails, once, a few times or for a while; the storage is full; the call is carried
out, and its answer is lost, so that the caller gets an error, or the call is done twice. What is not synced may be lost
with the machine (losing.py). Time passes with calls and waits alone, and each process has its own clock on the wall.
"""

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from losing import REAL, Disk

MOST = 200_000  # calls of a process
CHANGES = frozenset({"rename", "unlink", "mkdir", "rmdir", "create", "write", "truncate"})
ALLOCATES = frozenset({"mkdir", "create", "write", "fsync"})
ERRORS = {"eio": errno.EIO, "estale": errno.ESTALE, "full": errno.ENOSPC, "outage": errno.EIO}
KINDS = ("kill", "torn", "eio", "estale", "full", "unanswered", "doubled", "outage")
OUTAGES = {1: 5.0, 2: 60.0, 3: 300.0}  # seconds


class KilledError(BaseException):
    """The process was killed."""


class Here(threading.local):
    """The process that this thread is; None is the test, whose calls meet nothing."""

    process: "Process | None" = None


HERE = Here()


@dataclass
class Fault:
    """What a process meets at the first fitting call after so many."""

    kind: str
    after: int
    times: int = 1

    def fits(self, call: str) -> bool:
        """Whether the call is one that this can happen to."""
        if self.kind in ("kill", "unanswered", "doubled"):
            return call in CHANGES and not (self.kind == "doubled" and call in ("write", "truncate"))
        return call in {"torn": {"write"}, "full": ALLOCATES}.get(self.kind, {call})


class World:
    """Storage, time and processes."""

    def __init__(self, root: Path, grave: Path) -> None:
        self.root, self.time = root, 0.0
        self.disk = Disk(root, grave)
        self.processes: list[Process] = []
        self.counts: Counter[str] = Counter()
        self.changed: Callable[[Process, str, str], None] = lambda process, call, path: None

    @property
    def running(self) -> list["Process"]:
        """The processes that have not ended."""
        return [process for process in self.processes if not process.ended]

    def start(self, body: Callable[[], str], job: str, faults: list[Fault], beats: bool = True) -> "Process":
        """Add a process, which does nothing yet."""
        process = Process(self, body, job, faults, beats)
        self.processes.append(process)
        return process

    def sleep(self, seconds: float) -> None:
        """Wait; those who show that they live do so meanwhile."""
        process = HERE.process
        assert process is not None
        self.time += seconds
        HERE.process = None
        for other in self.processes:
            if other is not process and not other.ended and other.beats and other.heart:
                other.heart()
        HERE.process = process
        process.meet("sleep", "")

    def crash(self, seed: int) -> None:
        """All machines stop, and the storage loses what is not safe."""
        for process in self.running:
            process.kill()
        undone, torn = self.disk.undone, self.disk.torn
        self.disk.crash(random.Random(seed))
        self.counts["crash"] += 1
        self.counts["change of names lost"] += self.disk.undone - undone
        self.counts["content lost"] += self.disk.torn - torn

    def end(self) -> None:
        """End all threads."""
        for process in self.running:
            process.kill()
        self.disk.close()


class Process:
    """A process, which runs when it is told to."""

    def __init__(self, world: World, body: Callable[[], str], job: str, faults: list[Fault], beats: bool) -> None:
        self.world, self.job, self.faults, self.beats = world, job, list(faults), beats
        self.heart: Callable[[], object] | None = None
        self.outcome = ""
        self.error: BaseException | None = None
        self.ended = self.dead = self.full = False
        self.skew = 0.0  # of its clock on the wall
        self.calls = self._left = 0
        self._down = -1.0  # until when its storage does not answer
        self._pause = 0  # calls before the next fault counts
        self.descriptors: set[int] = set()  # open ones
        self._stale: set[int] = set()
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._body = body
        threading.Thread(target=self._run, daemon=True).start()

    def go(self, calls: int) -> None:
        """Run for so many calls; raises what it must not end with."""
        if self.ended:
            return
        os.environ["TRAINYARD_JOB"] = self.job
        self._left = calls
        self._turn.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """Die between two calls."""
        self.dead = True
        self.world.counts["kill between calls"] += 1
        self.go(0)

    def meet(self, call: str, path: str, descriptor: int = -1) -> Fault | None:
        """What a call meets before it is carried out; returns a fault that comes with it or after it."""
        self.calls += 1
        self.world.time += 0.01
        assert self.calls < MOST, f"no end: {call} {path}"
        self._left -= 1
        if self._left < 0 and not self.dead:
            self._back.release()
            self._turn.acquire()
        if self.dead:
            raise KilledError
        if call == "sleep":
            return None
        if self.world.time < self._down:
            self._count("call in an outage")
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if descriptor in self._stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return self._next(call, path, descriptor)

    def _next(self, call: str, path: str, descriptor: int) -> Fault | None:
        fault = self.faults[0] if self.faults else None
        self._pause += 1
        if fault is None or self._pause <= fault.after or not fault.fits(call):
            return None
        self._count(fault.kind)
        if fault.kind == "kill":
            self.dead = True
            raise KilledError
        if fault.kind == "outage":
            self._down = self.world.time + OUTAGES[fault.times]
        if fault.kind == "estale" and descriptor >= 0:
            self._stale.add(descriptor)
        fault.times -= 1
        if fault.times <= 0 or fault.kind == "outage":
            self.faults.pop(0)
            self._pause = 0
        if fault.kind in ERRORS and (fault.kind, call) != ("full", "write"):
            raise OSError(ERRORS[fault.kind], os.strerror(ERRORS[fault.kind]), path)
        return fault

    def reopened(self, descriptor: int) -> None:
        """A descriptor stands for another open file."""
        self._stale.discard(descriptor)

    def closed(self, descriptor: int) -> None:
        """A descriptor is free again."""
        self._stale.discard(descriptor)
        self.descriptors.discard(descriptor)

    def _count(self, kind: str) -> None:
        self.world.counts[kind] += 1

    def _run(self) -> None:
        HERE.process = self
        self._turn.acquire()
        try:
            self.outcome = self._body()
        except KilledError:
            self.outcome = "killed"
        except BaseException as error:
            self.error = error
        for descriptor in self.descriptors:  # as the kernel does
            REAL.close(descriptor)
        self.descriptors.clear()
        self.ended = True
        self._back.release()
