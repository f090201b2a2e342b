"""Ends a run that hangs, and names the ranks that did not arrive and where the others wait for them.

The main thread calls `beat` whenever it makes progress. A separate thread publishes a heartbeat every few seconds, and
looks at the others' once the main thread has made no progress for half of the time that it may take (beats.py: over the
network and through files). Once all of that has passed it ends the process with exit code 138, which operators retry.
hang_bound.py says how long that is. A process without any heartbeat, or whose storage hangs, gets no extension for a
phase that may take longer.

The thread that watches touches no file system but /proc: where storage hangs it still ends the process, and names the
file and its mount.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainyard.core.exits import Exit, write_termination_message
from trainyard.telemetry import flight, hang_bound, mounts
from trainyard.telemetry.beats import Answers, Files, Heartbeat, replace
from trainyard.telemetry.hang import Missing, find_missing, hang_message, stack_of
from trainyard.telemetry.hang_bound import AUTO, PATIENCE, Seconds, StepTimes

log = logging.getLogger("trainyard")

LONGEST_INTERVAL = 5.0
PROOF_SECONDS = 1.0  # for the answer which proves that ranks reach each other
PATIENT = ("start", "checkpoint", "finish")
LAST_SECONDS = 5.0  # for what is written at the end of a hang, to storage that may hang too


class Ranked(Protocol):
    """The methods of a strategy that the watchdog uses."""

    rank: int
    world: int

    def gather_objects(self, value: Any) -> list[Any]:
        """Every process's object, in the order of ranks."""


@dataclass(frozen=True)
class Beat:
    """The last sign of progress of the main thread: its number, the phase begun, and whether that may take longer."""

    number: int
    what: str
    step: int
    patient: bool
    began: float  # on the monotonic clock


class Watchdog:
    """Watches one process; `seconds` without a beat end it (hang_bound.py says what `auto` is), 0 switches that off.

    Heartbeats are published in any case.

    Every process of the run creates it at the same place: they exchange their addresses.
    """

    def __init__(self, directory: Path, strategy: Ranked, seconds: Seconds, staging: Path | None = None) -> None:
        """Files are written by way of `staging` (the lease's folder): without the lease they are no more."""
        self._directory, self._staging = directory, staging
        self._rank, self._world = strategy.rank, strategy.world
        self._auto = seconds == AUTO
        self._seconds = hang_bound.longest(seconds)
        often = hang_bound.SILENT / 4 if self._auto else self._seconds / 8
        self._interval = min(LONGEST_INTERVAL, often or LONGEST_INTERVAL)
        self._measured = StepTimes()
        self._proven = False  # that ranks reach each other over the network
        self._now = Beat(0, "start", 0, True, time.monotonic())
        self._waited = 0.0
        self._known: set[str] = set()
        self._main = threading.main_thread().ident
        self._ended = threading.Event()
        self._looked: dict[int, Heartbeat] = {}
        self._quiet: set[int] = set()  # ranks that did not answer at the last look
        self._next_look = self._seconds / 2
        self._blocked: dict[tuple[int, str], float] = {}
        self._storage = ""
        self._files = Files(directory, self._rank, staging)
        self._answers = Answers(self._rank, strategy.gather_objects, self._heartbeat)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.beat("start", 0)
        self._thread.start()

    def beat(self, what: str, step: int) -> None:
        """Record progress: this process begins `what` (start, data, step, validation, checkpoint) at a step."""
        last, now = self._now, time.monotonic()
        if last.what == "step" and not last.patient:
            self._measured.add(now - last.began)
        self._now = Beat(last.number + 1, what, step, what in PATIENT or what not in self._known, now)
        self._known.add(what)

    def close(self) -> None:
        """Stop watching: this process is done with the others."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(self._interval + 1)
            self._files.offer({**self._heartbeat(), "done": True})
            self._files.close(LAST_SECONDS)
            self._answers.close()

    def _watch(self) -> None:
        """Publish heartbeats until closed. Time in which this process did not run at all (SIGSTOP) does not count."""
        number, last = 0, time.monotonic()
        while True:
            now = self._now
            passed = min(time.monotonic() - last, 4 * self._interval)
            self._waited = self._waited + passed if now.number == number else 0.0
            number, last = now.number, time.monotonic()
            self._storage = self._hung_storage()
            self._files.offer(self._heartbeat())
            if self._auto and not self._proven:
                self._proven = self._answers.reach_another(PROOF_SECONDS)
            if not self._seconds or self._waited < self._spacing(now):
                self._looked, self._quiet, self._next_look = {}, set(), self._spacing(now)
            elif self._waited >= self._next_look and (hang := self._look(now)):
                self._end(now, *hang)
            if self._ended.wait(self._interval):
                return

    def _look(self, now: Beat) -> tuple[list[Missing], dict[int, Heartbeat]] | None:
        """Compare all heartbeats with those seen before; returns who is missing, and the heartbeats, if this is a hang.

        Files are read only of those that do not answer.
        """
        beats = {**self._answers.ask(self._interval), self._rank: self._heartbeat()}
        quiet = [rank for rank in range(self._world) if rank not in beats]
        beats |= self._files.read(quiet, self._interval)
        before, self._looked = self._looked, beats
        self._next_look = self._waited + self._spacing(now)
        still, self._quiet = self._quiet, set(quiet)
        away = [rank for rank in quiet if not beats[rank].get("done")]
        silent = [rank for rank in away if before and beats[rank] == before.get(rank)]
        # Not those that only answer late, or died: they have published that they wait, too, since the look before
        cut = [
            rank for rank in away
            if self._proven and rank in still and rank not in silent
            and beats[rank].get("waited_seconds", 0) >= self._waited / 2
        ]  # fmt: skip
        # Answered at the look before, or its file could be read at one of the two looks alone: the next look judges it
        unjudged = [rank for rank in away if rank not in still or bool(beats[rank]) != bool(before.get(rank))]
        stuck = self._files.stuck()[1] >= self._seconds / 2
        limits = [self._limit(now, beats)]
        if silent:
            limits.append(hang_bound.SILENT if self._proven and not now.patient else self._seconds)
        if stuck:
            limits.append(self._seconds)
        goes_on = self._now is not now  # while the others were asked
        if goes_on or self._waited < min(limits) or (unjudged and not silent):
            return None
        return find_missing(beats, silent, cut), beats

    def _spacing(self, now: Beat) -> float:
        """Return the seconds without a beat before the first look, and those between two looks.

        They are long where they can be, since every rank looks at every rank.
        """
        if not self._auto or now.patient:
            return self._seconds / 2
        return (hang_bound.SILENT if self._waited < hang_bound.LEAST else hang_bound.LEAST) / 2

    def _limit(self, now: Beat, beats: dict[int, Heartbeat]) -> float:
        """Return the seconds that this process may wait for ranks which show life."""
        mine = self._allowed(now)
        if not self._auto or mine >= self._seconds:
            return mine
        living = [beat for beat in beats.values() if beat and not beat.get("done")]
        return min(self._seconds, max([mine, *(float(beat.get("allowed", self._seconds)) for beat in living)]))

    def _allowed(self, now: Beat) -> float:
        """Return the seconds that this process may take for what it does."""
        if now.patient:
            return self._seconds * PATIENCE
        if not self._auto or now.what != "step" or hang_bound.has_no_usual_length(self._main):
            return self._seconds
        return self._measured.bound

    def _end(self, now: Beat, missing: list[Missing], beats: dict[int, Heartbeat]) -> None:
        """Say what hangs, where nothing can block; then record it; and end the process in any case."""
        message = hang_message(self._rank, now.what, now.step, self._waited, missing)
        stack = beats[self._rank].get("stack", [])
        print(f"error: {message}\nrank {self._rank} is here:\n" + "\n".join(stack), file=sys.stderr, flush=True)
        write_termination_message(message)
        note = {
            "code": int(Exit.HANG), "message": message, "time": round(time.time(), 3),
            "what": now.what, "step": now.step, "waited_seconds": round(self._waited, 1), "reported_by": self._rank,
            "missing": [{"rank": one.rank, "reason": one.reason, "host": one.beat.get("host")} for one in missing],
            "stacks": {str(rank): beat.get("stack", []) for rank, beat in beats.items()},
        }  # fmt: skip
        last_words = (
            lambda: flight.write(self._directory, self._rank),
            lambda: log.error("%s\n%s", message, "\n".join(stack)),
            lambda: replace(self._directory / "hang.json", note, self._staging),
        )
        # Each on its own: the first may wait for a lock of NCCL's, the others for storage
        threads = [threading.Thread(target=_quietly, args=(word,), daemon=True) for word in last_words]
        deadline = time.monotonic() + LAST_SECONDS
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        os._exit(int(Exit.HANG))

    def _heartbeat(self) -> Heartbeat:
        """Return the heartbeat of this process, of now."""
        now, waited = self._now, self._waited
        beat: Heartbeat = {
            "rank": self._rank, "host": socket.gethostname(), "pid": os.getpid(), "what": now.what, "step": now.step,
            "beats": now.number, "waited_seconds": round(waited, 1), "time": round(time.time(), 3),
        }  # fmt: skip
        if self._seconds and waited >= self._spacing(now):
            beat["allowed"] = self._allowed(now)
            beat["stack"] = stack_of(self._main)
            if self._storage:
                beat["storage"] = self._storage
        return beat

    def _hung_storage(self) -> str:
        """Get the call to storage that does not return, in words: the heartbeat's own, or that of any thread here."""
        if not self._seconds or self._waited < self._seconds / 2:
            self._blocked = {}
            return ""
        path, seconds = self._files.stuck()
        if seconds >= self._seconds / 2:
            return mounts.describe(path, seconds)
        now = time.monotonic()
        self._blocked = {key: self._blocked.get(key, now) for key in mounts.blocked_files().items()}
        # A call that is seen at several looks: any may be at a file just now
        late = [path for (_, path), since in self._blocked.items() if now - since >= self._seconds / 4]
        return mounts.describe(late[0], self._waited) if late else ""


def _quietly(action: Callable[[], None]) -> None:
    """Do something that may fail, such as writing to a full disk; the process ends anyway."""
    try:
        action()
    except Exception as error:
        print(f"watchdog: {error}", file=sys.stderr, flush=True)
