"""The lease of a run directory as its first process holds it: taken at the start, shown alive, asked before writing.

`fence.py` says how a lease is taken and why no older holder publishes after that. Here is what a run does with it:
which jobs may take it, a thread that shows from then on that the holder is alive, and which checkpoints count.

A checkpoint counts if its writer held the lease. On storage that keeps the promises of `fence.py` there are no others.
Where it does not (a mounted object store), each checkpoint still names its writer, and the next start sets aside those
of a writer that had lost the lease by then.
"""

import contextlib
import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

from trainers.run import checkpoint, fence, storage
from trainers.run.fence import Record
from trainers.run.owner import TakenOverError, job_name, owner_name, refuse_strangers

log = logging.getLogger("trainers")


class Lease:
    """The lease of a run directory; the first process takes it, the others `join`."""

    def __init__(self, directory: Path, adopt: bool = False) -> None:
        """`adopt` takes the directory over from another release."""
        self.root = directory
        self.holder = storage.unique()
        self._adopt = adopt
        self._record: Record | None = None
        self._beats = 0
        self._lost = threading.Event()
        self._ended = threading.Event()
        self._one = threading.Lock()

    @property
    def number(self) -> int:
        """The lease's number; 0 before it is taken."""
        return self._record.number if self._record else 0

    @property
    def folder(self) -> Path:
        """Where this process writes what it publishes by a rename."""
        return fence.folder_of(self.root, self.number)

    def take(self, checkpoints: Path) -> list[str]:
        """Take the lease; returns messages about checkpoints set aside because their writer did not have it.

        Raises TakenOverError while a newer job than this one holds it, StrangerError where the directory is another
        release's, OSError.
        """
        self._record, before = fence.take(storage, self.root, lambda newest: self._follow(newest, checkpoints))
        threading.Thread(target=self._beat, name="lease", daemon=True).start()
        try:
            fence.fence(storage, self.root, self._record)
            # From here on the last holder writes nothing more; what it wrote until now counts.
            self._note(trusted=_trusted(before, checkpoints), writers=(self.holder,))
            return _set_late_aside(checkpoints, self._record.trusted or (), self.folder)
        except FileNotFoundError:
            if self.held():
                raise
            raise TakenOverError(self.taken_message()) from None

    def join(self, number: int) -> None:
        """Learn, in another process than the first, which lease this run has."""
        self._record = self._record or Record(number)

    def lost(self) -> bool:
        """Whether another process is known to have taken the lease; asks nobody."""
        return self._lost.is_set()

    def held(self) -> bool:
        """Whether this process still has the lease, as the storage says; asked on any thread."""
        if self._record is None or self._lost.is_set():
            return False
        with self._one:
            self._beats += 1
            try:
                alive = fence.beat(storage, self.root, self._record, self._beats)
            except OSError:
                return True  # a brief failure of the storage does not mean that another job took over
        if not alive:
            self._lost.set()
        return alive

    def taken_message(self) -> str:
        """The message that names the job which took the run directory."""
        newer = None
        with contextlib.suppress(OSError):
            newer = fence.newest(storage, self.root, look_only=True)
        by = (newer.job or newer.holder) if newer else "another process"
        return _taken_message(self.root, by)

    def in_force(self) -> bool:
        """Whether this run still has the lease, as far as this machine's cache says; asked in any of its processes."""
        return not self._lost.is_set() and self.folder.is_dir()

    def enter(self) -> None:
        """Note that the job continues from here on what it finds, rather than beginning something."""
        self._note(entered=True)

    def release(self) -> None:
        """Release the lease, if it is still held."""
        self._ended.set()
        if self._record:
            with contextlib.suppress(FileNotFoundError):
                self._note(released=True)

    def _follow(self, newest: Record | None, checkpoints: Path) -> Record:
        """The record by which this process takes the lease after the newest one."""
        job, old = job_name(), newest or Record()
        refuse_strangers(self.root, old.owner, self._adopt)
        if job and job in old.superseded and newest and not fence.abandoned(storage, self.root, newest):
            raise TakenOverError(_taken_message(self.root, old.job or old.holder))
        superseded = [name for name in (*old.superseded, old.job) if name and name != job]
        return Record(
            holder=self.holder,
            job=job,
            owner=owner_name() or old.owner,
            entered=old.entered and old.job == job,
            superseded=tuple(dict.fromkeys(superseded)),
            trusted=_trusted(newest, checkpoints),
            writers=(self.holder, *old.writers),  # until this process has fenced them off
            further={"time": time.time()},
        )

    def _note(self, **changes: object) -> None:
        """Change the lease's record, and its copy for people and older versions."""
        assert self._record is not None
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]
        for path in (self.folder / fence.RECORD, self.root / fence.MIRROR):
            fence.put(storage, self.root, self._record, path, self._record.encode())

    def _beat(self) -> None:
        """Show until the end, or until the lease is lost, that its holder is alive."""
        while self.held() and not self._ended.wait(fence.BEAT_SECONDS):
            pass


def _taken_message(root: Path, by: str) -> str:
    return (
        f"{root} was taken over by {by}, a newer job; this older one stops and writes nothing more. Give one of them "
        "another name (run.dir, on a cluster training.name)"
    )


def _trusted(old: Record | None, checkpoints: Path) -> tuple[str, ...]:
    """Checkpoints of those who held the lease when they wrote: those that the last record trusts, and its writers'."""
    saved = checkpoint.steps(checkpoints)
    if old is None or old.trusted is None:
        return tuple(path.name for path in saved)
    known, writers = set(old.trusted), {"", *old.writers}
    return tuple(path.name for path in saved if path.name in known or checkpoint.holder(path) in writers)


def _set_late_aside(checkpoints: Path, trusted: tuple[str, ...], staging: Path) -> list[str]:
    reports = []
    for path in checkpoint.steps(checkpoints):
        if path.name not in trusted:
            aside = checkpoint.set_aside(path, "late", staging)
            reports.append(
                f"checkpoint {path.name} was written by a process that had lost this run directory before; set aside "
                f"as {aside.name}"
            )
    return reports
