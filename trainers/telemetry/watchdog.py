"""Ends a run that hangs, and names the ranks that did not arrive and where the others wait for them.

Processes observe each other through `heartbeats/rank-R.json` in the run directory, which all nodes share. So the
watchdog works with every strategy, and also when the network between processes fails.

The main thread calls `beat` whenever it makes progress. A separate thread writes the heartbeat every few seconds, and
reads the other heartbeats once the main thread has made no progress for half of comm.hang_seconds. After
comm.hang_seconds it ends the process with exit code 138, which operators retry. Phases that may take long get six times
as long: the start, checkpoints, the end, and whatever happens for the first time (compiling). A process without any
heartbeat does not get that extension.
"""

import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainers.exits import Exit, write_termination_message
from trainers.files import peek_json, write_atomically

log = logging.getLogger("trainers")

LONGEST_INTERVAL = 5.0
PATIENCE = 6
PATIENT = ("start", "checkpoint", "finish")
# Innermost Python calls of a process that waits for others: torch's collectives and backward, Horovod, our strategies.
WAITING = ("/torch/distributed/", "/torch/autograd/graph.py", "/horovod/", "/trainers/parallel/")

Heartbeat = dict[str, Any]


class Ranked(Protocol):
    """What the watchdog needs of a strategy."""

    rank: int
    world: int


@dataclass(frozen=True)
class Beat:
    """The last sign of progress of the main thread: its number, the phase begun, and whether that may take longer."""

    number: int
    what: str
    step: int
    patient: bool


@dataclass(frozen=True)
class Missing:
    """A rank that did not arrive, and the evidence."""

    rank: int
    reason: str
    beat: Heartbeat

    def __str__(self) -> str:
        where = f" on {self.beat['host']}, pid {self.beat['pid']}" if self.beat else ""
        return f"rank {self.rank}{where}: {self.reason}"


class Watchdog:
    """Watches one process; `seconds` without a beat end it, 0 switches that off (heartbeats are still written)."""

    def __init__(self, directory: Path, strategy: Ranked, seconds: float) -> None:
        self._directory = directory
        self._rank, self._world = strategy.rank, strategy.world
        self._seconds = seconds
        self._interval = min(LONGEST_INTERVAL, seconds / 8) if seconds else LONGEST_INTERVAL
        self._now = Beat(0, "start", 0, True)
        self._known: set[str] = set()
        self._main = threading.main_thread().ident
        self._ended = threading.Event()
        self._looked: dict[int, Heartbeat] = {}
        self._next_look = seconds / 2
        self._previous = float(peek_json(self._path(self._rank)).get("time", 0))  # of the start before this one
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.beat("start", 0)
        self._thread.start()

    def beat(self, what: str, step: int) -> None:
        """Record progress: this process begins `what` (start, step, validation, checkpoint) at a step."""
        self._now = Beat(self._now.number + 1, what, step, what in PATIENT or what not in self._known)
        self._known.add(what)

    def close(self) -> None:
        """Stop watching: this process is done with the others."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(self._interval + 1)
            self._write(self._now, waited=0.0, done=True)

    def _watch(self) -> None:
        """Write heartbeats until closed. Time in which this process did not run at all (SIGSTOP) does not count."""
        number, waited, last = 0, 0.0, time.monotonic()
        while True:
            now = self._now
            waited = waited + min(time.monotonic() - last, 2 * self._interval) if now.number == number else 0.0
            number, last = now.number, time.monotonic()
            self._write(now, waited)
            if not self._seconds or waited < self._seconds / 2:
                self._looked, self._next_look = {}, self._seconds / 2
            elif waited >= self._next_look and (hang := self._look(now, waited)):
                self._end(now, waited, hang)
            if self._ended.wait(self._interval):
                return

    def _look(self, now: Beat, waited: float) -> dict[str, Any] | None:
        """Compare the other heartbeats with those read before; returns what to report if this is a hang.

        The reads are half of comm.hang_seconds apart, since every rank reads every heartbeat from shared storage.
        """
        beats = {rank: peek_json(self._path(rank)) for rank in range(self._world)}
        before, self._looked = self._looked, beats
        self._next_look = waited + self._seconds / 2
        if waited < self._seconds:
            return None
        silent = [
            rank for rank, beat in beats.items()
            if rank != self._rank and beat == before.get(rank) and not beat.get("done")
        ]  # fmt: skip
        if not silent and waited < self._seconds * (PATIENCE if now.patient else 1):
            return None
        return {"missing": not_arrived(beats, silent), "beats": beats}

    def _end(self, now: Beat, waited: float, hang: dict[str, Any]) -> None:
        """Report on stderr, in the log and in hang.json, and end the process."""
        message = hang_message(self._rank, now.what, now.step, waited, hang["missing"])
        stack = stack_of(self._main)
        log.error("%s\n%s", message, "\n".join(stack))
        print(f"error: {message}\nrank {self._rank} is here:\n" + "\n".join(stack), file=sys.stderr, flush=True)
        write_termination_message(message)
        note = {
            "code": int(Exit.HANG), "message": message, "time": round(time.time(), 3),
            "what": now.what, "step": now.step, "waited_seconds": round(waited, 1), "reported_by": self._rank,
            "missing": [{"rank": m.rank, "reason": m.reason, "host": m.beat.get("host")} for m in hang["missing"]],
            "stacks": {str(rank): beat.get("stack", []) for rank, beat in hang["beats"].items()} | {
                str(self._rank): stack
            },
        }  # fmt: skip
        _quietly(lambda: _replace(self._directory / "hang.json", note))
        os._exit(int(Exit.HANG))

    def _write(self, now: Beat, waited: float, done: bool = False) -> None:
        """Write this process's heartbeat; without fsync, since only the living read it."""
        beat: Heartbeat = {
            "rank": self._rank, "host": socket.gethostname(), "pid": os.getpid(), "what": now.what, "step": now.step,
            "beats": now.number, "waited_seconds": round(waited, 1), "time": round(time.time(), 3),
            "previous": self._previous,
        }  # fmt: skip
        if done:
            beat["done"] = True
        if self._seconds and waited >= self._seconds / 2:
            beat["stack"] = stack_of(self._main)
        _quietly(lambda: _replace(self._path(self._rank), beat))

    def _path(self, rank: int) -> Path:
        return self._directory / "heartbeats" / f"rank-{rank}.json"


def not_arrived(beats: dict[int, Heartbeat], silent: list[int]) -> list[Missing]:
    """The ranks that the others wait for: those without a heartbeat, or else outside of any collective, or else behind.

    `beats` holds each rank's heartbeat. Empty if all ranks are in the same place.
    """
    if silent:
        return [Missing(rank, "no sign of life: stopped, cut off or gone", beats[rank]) for rank in silent]
    living = {rank: beat for rank, beat in beats.items() if beat and not beat.get("done")}
    outside = [rank for rank, beat in living.items() if beat.get("stack") and not in_collective(beat["stack"])]
    if 0 < len(outside) < len(living):
        return [Missing(rank, f"alive, but not at the others' collective: {_place(living[rank])}", living[rank])
                for rank in outside]  # fmt: skip
    furthest = max((beat["beats"] for beat in living.values()), default=0)
    late = [rank for rank, beat in living.items() if beat["beats"] < furthest]
    return [Missing(rank, f"alive, but behind the others: {_place(living[rank])}", living[rank]) for rank in late]


def in_collective(stack: list[str]) -> bool:
    """Whether a stack, innermost call last, ends where a process waits for others."""
    return any(place in line for line in stack[-3:] for place in WAITING)


def hang_message(rank: int, what: str, step: int, waited: float, missing: list[Missing]) -> str:
    """One paragraph for people."""
    begun = f"rank {rank} has made no progress for {waited:.0f} s in {what} at step {step}"
    remedy = "The stacks are in hang.json and logs/; raise comm.hang_seconds if this much time is needed"
    if not missing:
        return f"{begun}; all ranks are in the same place, so the network or the storage hangs. {remedy}"
    return f"{begun}; did not arrive: {'; '.join(map(str, missing))}. {remedy}"


def stack_of(thread: int | None) -> list[str]:
    """The stack of a thread, innermost call last, a line per call."""
    frame = sys._current_frames().get(thread or 0)
    return [f"{call.filename}:{call.lineno} {call.name}" for call in traceback.extract_stack(frame)] if frame else []


def last_alive(directory: Path, before: float) -> float:
    """When a process of the run last wrote a heartbeat before a moment, in Unix seconds; 0 if never."""
    beats = [peek_json(path) for path in (directory / "heartbeats").glob("rank-*.json")]
    times = [float(beat.get(key, 0)) for beat in beats for key in ("time", "previous")]
    return max((moment for moment in times if moment < before), default=0.0)


def _place(beat: Heartbeat) -> str:
    at = f" at {beat['stack'][-1]}" if beat.get("stack") else ""
    return f"in {beat['what']}, step {beat['step']}{at}"


def _replace(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(value) + "\n").encode(), durable=False)


def _quietly(action: Callable[[], None]) -> None:
    """Write a file, ignoring errors of a full or missing disk; the watchdog continues without it."""
    try:
        action()
    except OSError as error:
        log.warning("heartbeat: %s", error)
