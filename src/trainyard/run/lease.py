"""The lease of a run directory as rank 0 holds it: taken at the start, shown alive, asked before writing.

`fence.py` says how a lease is taken and why no older holder publishes after that. Here is what a run does with it:
which jobs may take it, a thread that shows from then on that the holder is alive, and which checkpoints count.

A checkpoint counts if its writer held the lease. On storage that keeps the promises of `fence.py` there are no others.
Where it does not (a mounted object store), each checkpoint still names its writer, and the next start sets aside those
of a writer that had lost the lease by then.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from trainyard.core.files import parse_json
from trainyard.core.storage import storage
from trainyard.run import checkpoint, fence, lease_files
from trainyard.run.fence import Record
from trainyard.run.lease_files import Calls, unique
from trainyard.run.owner import TakenOverError, job_name, owner_name, refuse_strangers


class Lease:
    """The lease of a run directory; rank 0 takes it, the others `join`."""

    def __init__(
        self,
        directory: Path,
        adopt: bool = False,
        begins_anew: Callable[[], bool] = lambda: False,
        on: Calls = lease_files,
    ) -> None:
        """`adopt` takes the directory over from another release; `begins_anew`: another job's run is not continued."""
        self.root = directory
        self.holder = unique()
        self._adopt, self._begins_anew, self._storage = adopt, begins_anew, on
        self._record: Record | None = None
        self._beats, self._noted = 0, False
        self._lost = threading.Event()
        self._ended = threading.Event()

    @property
    def number(self) -> int:
        """The lease's number; 0 before it is taken."""
        return self._record.number if self._record else 0

    @property
    def folder(self) -> Path:
        """Where this process writes what it publishes by a rename."""
        return fence.folder_of(self.root, self.number)

    @property
    def continued(self) -> bool:
        """Whether the job that has taken this lease held the one before, too, and had entered; known until `enter`."""
        return bool(self._record and self._record.job and self._record.entered)

    def take(self, checkpoints: Path) -> list[str]:
        """Take the lease; returns messages about checkpoints set aside because their writer did not have it.

        Raises TakenOverError while a newer job than this one holds it, and where this one would not continue the newer
        one's run, StrangerError where the directory is another release's, OSError.
        """
        self._record, before = fence.take(self._storage, self.root, lambda newest: self._follow(newest, checkpoints))
        self._show_alive()
        with self.fenced():
            fence.fence(self._storage, self.root, self._record)
            # From here on the last holder writes nothing more; what it wrote until now counts.
            saved = self._saved(checkpoints)
            trusted = _trusted(before, saved)
            self._note(trusted=trusted, writers=(self.holder,))
            late = [self._set_late_aside(checkpoints, name) for name in saved if name not in trusted]
            return [*_unknown(self.root, before), *late]

    @contextlib.contextmanager
    def fenced(self) -> Iterator[None]:
        """Around what is written by way of `folder`: raises TakenOverError where the lease was lost meanwhile.

        Raises StorageError where the storage does not say whether it was.
        """
        try:
            yield
        except FileNotFoundError:
            # `held` is true where its look fails; only a newer holder removes the folder
            if self.held() and storage.exists(self.folder):
                raise
            raise TakenOverError(self.taken_message()) from None

    def join(self, number: int) -> None:
        """Learn, in another process than rank 0, which lease this run has."""
        self._record = self._record or Record(number)

    def lost(self) -> bool:
        """Whether another process is known to have taken the lease; asks nobody."""
        return self._lost.is_set()

    def held(self) -> bool:
        """Whether this process still has the lease, as the storage says; asked on any thread."""
        if self._record is None or self._lost.is_set():
            return False
        self._beats += 1
        try:
            alive = fence.beat(self._storage, self.root, self._record, self._beats)
            if self._noted and fence.taken_by_older_version(self._storage, self.root):
                alive = False
        except OSError:
            return True  # a brief failure of the storage does not mean that another job took over
        if not alive:
            self._lost.set()
        return alive

    def seems_held(self) -> bool:
        """Whether this run still has the lease, as far as this machine's cache says; asked in any of its processes."""
        try:
            return not self._lost.is_set() and self.folder.is_dir()
        except OSError:
            return True  # a brief failure of the storage does not mean that another job took over

    def taken_message(self) -> str:
        """Return the message that names the job which took the run directory."""
        newer = None
        with contextlib.suppress(OSError):
            newer = fence.newest(self._storage, self.root, look_only=True)
        return _taken_message(self.root, newer)

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
        """Return the record by which this process takes the lease after the newest one."""
        job, old = job_name(), newest or Record()
        refuse_strangers(self.root, old.owner, self._adopt)
        if job and job in old.superseded and newest:
            if self._begins_anew():
                raise TakenOverError(_anew_message(self.root, newest))
            if not fence.abandoned(self._storage, self.root, newest):
                raise TakenOverError(_taken_message(self.root, newest))
        superseded = [name for name in (*old.superseded, old.job) if name and name != job]
        return Record(
            holder=self.holder,
            job=job,
            owner=owner_name() or old.owner,
            superseded=tuple(dict.fromkeys(superseded)),
            trusted=_trusted(newest, self._saved(checkpoints)),
            writers=(self.holder, *old.writers),  # until this process has fenced them off
            entered=old.entered and old.job == job,
            further={"time": time.time()},
        )

    def _note(self, **changes: object) -> None:
        """Change the lease's record, and its copy for people and older versions."""
        assert self._record is not None
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]
        for path in (self.folder / fence.RECORD, self.root / fence.MIRROR):
            fence.put(self._storage, self.root, self._record, path, self._record.encode())
        self._noted = True

    def _show_alive(self) -> None:
        """Show until the end, or until the lease is lost, that its holder is alive."""
        threading.Thread(target=self._beat, name="lease", daemon=True).start()

    def _beat(self) -> None:
        while not self._ended.is_set() and self.held():
            self._storage.sleep(fence.BEAT_SECONDS)

    def _saved(self, checkpoints: Path) -> dict[str, str]:
        """Return the writer of each checkpoint; empty where that is not known."""
        try:
            names = self._storage.fresh_names(checkpoints)
        except FileNotFoundError:
            return {}
        found = {}
        for name in filter(checkpoint.NAME.fullmatch, names):
            try:
                manifest = parse_json(self._storage.read(checkpoints / name / "manifest.json"))
                found[name] = str(manifest.get("holder", ""))
            except (OSError, ValueError, AttributeError):  # a resume from it finds out what it is
                found[name] = ""
        return found

    def _set_late_aside(self, checkpoints: Path, name: str) -> str:
        """Give it another name, by way of this lease's folder; returns the message about it."""
        aside = fence.set_aside(self._storage, checkpoints / name, "late", self.folder)
        return (
            f"checkpoint {name} was written by a process that had lost this run directory before; set aside as "
            f"{aside.name}"
        )


def _unknown(root: Path, before: Record | None) -> list[str]:
    """Return the message about the lease before this one, where nothing said whose it was."""
    name = before.further.get(fence.NO_RECORD) if before else None
    lease = root / fence.FOLDER / str(name)
    return [f"{lease} had no {fence.RECORD} that can be read; its holder can write nothing more here"] if name else []


def _anew_message(root: Path, newer: Record) -> str:
    return (
        f"{root} was taken over by {newer.job or newer.holder}, a newer job; this older one would set that one's run "
        "aside, as its `resume` says, so it stops and changes nothing. Set resume to auto to continue that run, or "
        "give this one another name (run.dir, on a cluster training.name)"
    )


def _taken_message(root: Path, newer: Record | None) -> str:
    by = (newer.job or newer.holder) if newer else "another process"
    return (
        f"{root} was taken over by {by}, a newer job; this older one stops and writes nothing more. Give one of them "
        "another name (run.dir, on a cluster training.name)"
    )


def _trusted(old: Record | None, saved: Mapping[str, str]) -> tuple[str, ...]:
    """Checkpoints of those who held the lease when they wrote: those that the last record trusts, and its writers'."""
    if old is None or old.trusted is None:
        return tuple(saved)
    writers = {"", *old.writers}
    return tuple(name for name, holder in saved.items() if name in old.trusted or holder in writers)
