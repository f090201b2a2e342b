"""A model of network storage, and of machines that use it, for schedules that no real machine shows on demand.

A server carries out one call at a time. Each machine sees it through caches as an NFS client's: names of a folder, what
a name stands for, and that a name is not there may be as old as STALE seconds, except that a machine asks again after
a change of its own, that opening a file checks it with the server, and that a handle which the server no longer knows
is looked up again. Calls that change something are decided by the server, by the handles of the folders, however old;
their answers may be lost and the calls repeated. With `fences=False` a removed folder can still be written through an
old handle, as on an object store.

Processes are threads of which one runs at a time. Before each call on storage another may be chosen, and a process may
die there or be suspended for minutes. Everything follows from the seed.
"""

import contextlib
import errno
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests import patience

Found = TypeVar("Found")
STALE = 60.0
DAY = 86400.0
Handle = int


class DiedError(BaseException):
    """The process was killed."""


class Here(threading.local):
    """The process that this thread is."""

    process: "Process"


HERE = Here()


class World:
    """Time, and which process runs next."""

    def __init__(self, random: random.Random, switch: float = 0.3) -> None:
        """`switch` is how likely another process runs before a call."""
        self.random, self.switch = random, switch
        self.time, self._turns = 0.0, 0
        self.errors: list[BaseException] = []
        self._processes: list[Process] = []
        self._done = threading.Event()

    def start(self, body: Callable[[], None], job: str, after: float = 0.0, meets: "Meets | None" = None) -> None:
        """Add a process of a job, which begins after so many seconds; `run` runs it."""
        self._processes.append(Process(self, body, job, self.time + after, meets))

    def start_thread(self, body: Callable[[], None]) -> None:
        """Add a thread to the process that asks for it: it is suspended with it and dies with it."""
        thread = Process(self, body, HERE.process.job, self.time)
        thread.leader = HERE.process
        self._processes.append(thread)

    def run(self) -> None:
        """Run all processes, also those that they start, to their ends."""
        self.next(None)
        before = -1
        while not self._done.wait(patience.IDLE):
            assert self._turns != before, "the model hangs"
            before = self._turns
        if self.errors:
            raise self.errors[0]

    def next(self, current: "Process | None") -> None:
        """Hand over to a process that is ready, the earliest sleeper if none is; returns on `current`'s turn."""
        self._turns += 1
        ready = [process for process in self._processes if process.wakes <= self.time]
        if not ready and self._processes:
            ready = [min(self._processes, key=lambda process: process.wakes)]
            self.time = ready[0].wakes
            assert self.time < DAY, "no end"
        if not ready:
            self._done.set()
            return
        chosen = self.random.choice(ready)
        if current in ready and self.random.random() > self.switch:
            chosen = current
        if chosen is not current:
            chosen.turn.release()
            if current is not None and not current.ended:
                current.turn.acquire()

    def forget(self, process: "Process") -> None:
        """A process has ended."""
        self._processes.remove(process)


class Meets:
    """What happens to a process before its n-th call: nothing, death, or a suspension of so many seconds."""

    def __init__(self, at: int = -1, seconds: float = 0.0) -> None:
        """Seconds of 0 are death."""
        self._at, self._seconds, self.calls = at, seconds, 0

    def __call__(self, call: int) -> float | None:
        """Seconds of suspension before a call; None for death."""
        self.calls = call
        if call != self._at:
            return 0.0
        return self._seconds or None


class Process:
    """A process, or a thread of one: it runs when it is its turn."""

    def __init__(
        self, world: World, body: Callable[[], None], job: str, wakes: float, meets: Meets | None = None
    ) -> None:
        self.world, self.job, self.wakes, self.ended = world, job, wakes, False
        self.leader, self.suspended = self, 0.0  # until when
        self.turn = threading.Semaphore(0)
        self.calls, self._meets, self._body = 0, meets, body
        threading.Thread(target=self._run, daemon=True).start()

    def before_call(self) -> None:
        """Let others run, be suspended or die."""
        self.calls += 1
        self.world.time += 0.01
        seconds = self._meets(self.calls) if self._meets else 0.0
        if seconds is None or self.leader.ended:
            raise DiedError
        self.suspended = self.world.time + seconds
        self.sleep(0.0)

    def sleep(self, seconds: float) -> None:
        """Wait, and longer while the process is suspended."""
        self.wakes = self.world.time + seconds
        while True:
            self.wakes = max(self.wakes, self.leader.suspended)
            self.world.next(self)
            if self.leader.suspended <= self.world.time:
                return

    def _run(self) -> None:
        HERE.process = self
        self.turn.acquire()
        try:
            self._body()
        except DiedError:
            pass
        except BaseException as error:
            self.world.errors.append(error)
        self.ended = True
        self.world.forget(self)
        self.world.next(self)


@dataclass
class Node:
    """A file or a folder on the server."""

    content: bytes = b""
    entries: dict[str, Handle] | None = None


@dataclass
class Server:
    """The storage itself: one call at a time."""

    fences: bool = True
    nodes: dict[Handle, Node] = field(default_factory=lambda: {0: Node(entries={})})
    handles: Iterator[Handle] = field(default_factory=lambda: itertools.count(1))

    def folder(self, handle: Handle) -> dict[str, Handle]:
        """The names in a folder; ESTALE for one that is gone."""
        node = self.nodes.get(handle)
        if node is None:
            raise OSError(errno.ESTALE, "stale handle")
        if node.entries is None:
            raise NotADirectoryError(errno.ENOTDIR, "no folder")
        return node.entries

    def lookup(self, folder: Handle, name: str) -> Handle:
        """What a name stands for."""
        entries = self.folder(folder)
        if name not in entries:
            raise FileNotFoundError(errno.ENOENT, name)
        return entries[name]

    def add(self, folder: Handle, name: str, node: Node) -> Handle:
        """Create a file or folder; EEXIST."""
        entries = self.folder(folder)
        if name in entries:
            raise FileExistsError(errno.EEXIST, name)
        handle = next(self.handles)
        self.nodes[handle], entries[name] = node, handle
        return handle

    def rename(self, old: tuple[Handle, str], new: tuple[Handle, str]) -> None:
        """Rename as POSIX has it."""
        handle = self.lookup(*old)
        target = self.folder(new[0])
        there = target.get(new[1])
        if there is not None and there != handle:
            moved, kept = self.nodes[handle], self.nodes[there]
            if kept.entries:
                raise OSError(errno.ENOTEMPTY, new[1])
            if (kept.entries is None) != (moved.entries is None):
                raise NotADirectoryError(errno.ENOTDIR, new[1])
            self.forget(there)
        del self.folder(old[0])[old[1]]
        target[new[1]] = handle

    def remove(self, folder: Handle, name: str, *, is_folder: bool) -> None:
        """Remove a file or an empty folder."""
        handle = self.lookup(folder, name)
        entries = self.nodes[handle].entries
        if entries is not None and not is_folder:
            raise IsADirectoryError(errno.EISDIR, name)
        if entries:
            raise OSError(errno.ENOTEMPTY, name)
        del self.folder(folder)[name]
        self.forget(handle)

    def forget(self, handle: Handle) -> None:
        """A file or folder is gone; without fences an object store lets a folder's old handle be used."""
        if self.fences or self.nodes[handle].entries is None:
            del self.nodes[handle]


class Machine:
    """Storage (src/trainyard/run/lease_files.py) as one machine sees it: the server, through caches."""

    def __init__(self, world: World, server: Server, lost_answers: float = 0.0) -> None:
        self.world, self.server, self.lost_answers = world, server, lost_answers
        self._started = world.random.uniform(0, 1e6)  # each machine has its own clock
        self._names: dict[Handle, tuple[float, list[str]]] = {}
        self._known: dict[tuple[Handle, str], tuple[float, Handle | None]] = {}

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, perhaps old ones."""
        self._call()
        return self._at(folder, self._list)

    def fresh_names(self, folder: Path) -> list[str]:
        """As the real one: after a change of one's own."""
        probe = folder / f".look-{self.world.random.getrandbits(32):08x}"
        with contextlib.suppress(FileExistsError):
            self.make(probe)
        with contextlib.suppress(FileNotFoundError):
            self.remove_folder(probe)
        return [name for name in self.names(folder) if name != probe.name]

    def read(self, path: Path) -> bytes:
        """The content of the file that the name stands for, or perhaps stood for."""
        self._call()
        return self._at(path, self._node).content

    def write(self, path: Path, data: bytes) -> None:
        """Create a file or replace its content."""
        self._call()

        def create(parent: Handle) -> None:
            entries = self.server.folder(parent)
            if path.name in entries:
                self.server.nodes[entries[path.name]].content = data
            else:
                self.server.add(parent, path.name, Node(data))
            self._changed(parent)

        self._at(path.parent, create)

    def overwrite(self, path: Path, data: bytes) -> None:
        """Replace a file's content."""
        self._call()
        self._at(path, self._node).content = data

    def make(self, folder: Path) -> None:
        """Create a folder."""
        self._change(folder, lambda parent: self.server.add(parent, folder.name, Node(entries={})))

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self._change(path, lambda parent: self.server.remove(parent, path.name, is_folder=False))

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder."""
        self._change(folder, lambda parent: self.server.remove(parent, folder.name, is_folder=True))

    def rename(self, old: Path, new: Path) -> None:
        """Rename."""

        def change(parent: Handle) -> None:
            target = self._at(new.parent, lambda handle: handle)
            self.server.rename((parent, old.name), (target, new.name))
            self._changed(target)
            self.renamed(old, new)

        self._change(old, change)

    def renamed(self, old: Path, new: Path) -> None:
        """For tests: the server has just renamed something for this machine."""

    def now(self) -> float:
        """This machine's own clock."""
        return self._started + self.world.time

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        HERE.process.sleep(seconds)

    def _call(self) -> None:
        HERE.process.before_call()

    def _change(self, path: Path, change: Callable[[Handle], object]) -> None:
        """Change something in a folder; perhaps twice, where the first answer is lost."""
        self._call()

        def once(parent: Handle) -> None:
            change(parent)
            self._changed(parent)

        self._at(path.parent, once)
        if self.world.random.random() < self.lost_answers:
            self._call()
            self._at(path.parent, once)

    def _changed(self, parent: Handle) -> None:
        """Nothing of a folder that this machine itself has changed is taken from its caches.

        So does Linux: its entries of a folder count only as long as the folder's change attribute is the one they were
        looked up under (fs/nfs/dir.c, nfs_verify_change_attribute).
        """
        self._names.pop(parent, None)
        if self.server.fences:  # a mounted object store keeps names for a time, whatever happens
            self._known = {key: known for key, known in self._known.items() if key[0] != parent}

    def _at(self, path: Path, use: Callable[[Handle], Found]) -> Found:
        """Use what a path stands for; by old handles first, and again by the server if it does not know them."""
        try:
            return use(self._walk(path))
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        self._known.clear()
        try:
            return use(self._walk(path))
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            raise FileNotFoundError(errno.ENOENT, str(path)) from None

    def _walk(self, path: Path) -> Handle:
        handle = 0
        for name in path.parts[1:]:
            handle = self._lookup(handle, name)
        return handle

    def _lookup(self, folder: Handle, name: str) -> Handle:
        since, known = self._known.get((folder, name), (-DAY, None))
        if self.world.time - since < STALE and self.world.random.random() < 0.8:
            if known is None:
                raise FileNotFoundError(errno.ENOENT, name)
            return known
        try:
            found = self.server.lookup(folder, name)
        except FileNotFoundError:
            self._known[folder, name] = self.world.time, None
            raise
        self._known[folder, name] = self.world.time, found
        return found

    def _list(self, folder: Handle) -> list[str]:
        since, names = self._names.get(folder, (-DAY, []))
        if self.world.time - since < STALE and self.world.random.random() < 0.8:
            return list(names)
        names = list(self.server.folder(folder))
        self._names[folder] = self.world.time, names
        return list(names)

    def _node(self, handle: Handle) -> Node:
        if handle not in self.server.nodes:
            raise OSError(errno.ESTALE, "stale handle")
        return self.server.nodes[handle]
