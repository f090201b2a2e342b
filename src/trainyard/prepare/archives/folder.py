"""A folder of files as a container: an unpacked archive on a volume, without packing it first.

The files are treated as if they were concatenated in the order of their paths, so that the rest of the preparation sees
one object with offsets, as in an archive. File systems hold no checksums to compare: while the preparation runs, a
file's size and change time identify its content, and the CRC-32 of what was read goes into the shard's index.
"""

import errno
import hashlib
import os
import stat
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.core.storage import storage
from trainyard.prepare.archives.members import BARE, Container, Member, name_hash, read_whole
from trainyard.prepare.names import noise
from trainyard.prepare.progress import Pulse
from trainyard.prepare.sources.base import Source, Traffic

_THREADS = 16


class _File(NamedTuple):
    name: str
    size: int
    changed_ns: int


class _Found(NamedTuple):
    """The entries of a folder, by the last parts of names."""

    identity: tuple[int, int]
    files: list[_File]
    folders: list[str]
    links: list[str]  # to nothing
    noise: list[str]


class FolderSource(Source):
    """The files of a folder as one object. Held per file: its name's last part and 20 bytes.

    Hidden and service folders are not entered: a file server's snapshots hold all of it again, and change hourly.
    """

    def __init__(self, root: Path, traffic: Traffic) -> None:
        self.label = str(root)
        self._root = root
        self._traffic = traffic
        self.folders: list[str] = []
        self._folder_of = array("I")
        self._names = bytearray()
        self._name_starts = array("Q")
        self._starts = array("Q", [0])
        # Hidden and service files and folders, by their names; links to nothing, by their paths
        self.noise: Counter[str] = Counter()
        self.links: list[str] = []
        digest = hashlib.sha256()
        for folder, found in _walk(root):
            self.folders.append(folder)
            self.noise.update(found.noise)
            self.links += (f"{folder}/{name}" if folder else name for name in found.links)
            for file in found.files:
                digest.update(repr((folder, *file)).encode("utf-8", "surrogateescape"))
                self._folder_of.append(len(self.folders) - 1)
                self._name_starts.append(len(self._names))
                self._names += file.name.encode("utf-8", "surrogateescape")
                self._starts.append(self._starts[-1] + file.size)
        self._name_starts.append(len(self._names))
        self.size = self._starts[-1]
        self.identity = digest.hexdigest()

    def files(self) -> Iterator[tuple[str, int, int]]:
        """Yield each file's path below the folder, its offset and its size."""
        for i in range(len(self._folder_of)):
            yield self._name(i), self._starts[i], self._starts[i + 1] - self._starts[i]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from the files that lie there."""
        done = 0
        # Of several files at one offset, all but the last are empty
        i = bisect_right(self._starts, offset) - 1
        while done < len(buffer):
            start, end = self._starts[i], self._starts[i + 1]
            length = min(end - offset - done, len(buffer) - done)
            if length:
                self._read_file(self._name(i), offset + done - start, buffer[done : done + length], end - start)
            done += length
            i += 1

    def close(self) -> None:
        """Nothing is held open."""

    def _name(self, i: int) -> str:
        name = self._names[self._name_starts[i] : self._name_starts[i + 1]].decode("utf-8", "surrogateescape")
        folder = self.folders[self._folder_of[i]]
        return f"{folder}/{name}" if folder else name

    def _read_file(self, name: str, offset: int, buffer: memoryview, size: int) -> None:
        path = self._root / name

        def read() -> tuple[bool, int]:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fits = os.fstat(descriptor).st_size == size
                return fits, os.preadv(descriptor, [buffer], offset) if fits else 0
            finally:
                os.close(descriptor)

        try:
            fits, count = storage.perform(path, read)
        except FileNotFoundError:
            fits, count = False, 0
        except OSError as error:
            raise ExitError(f"{path} cannot be read: {error.strerror}; check its volume", Exit.FAILED) from None
        if not fits or count != len(buffer):
            raise UserError(f"{path} changed while it was read; run the same command again once it no longer changes")
        self._traffic.add(received=count, requests=1)


class Folder(Container):
    """The files of a folder as members."""

    def __init__(self, source: FolderSource) -> None:
        self.source: FolderSource = source
        self.members_end = source.size
        self.fingerprint = source.identity
        self.noise, self.links, self.folders = source.noise, source.links, source.folders

    def members(self) -> Iterator[Member]:
        """Go through the files in the order of their paths."""
        for name, offset, size in self.source.files():
            yield Member(name, name_hash(name.encode("utf-8", "surrogateescape")), offset, size, size, 0, BARE)

    def read(self, member: Member) -> bytes:
        """Read one small file whole."""
        return read_whole(self, member, member.stored)


def _walk(root: Path) -> Iterator[tuple[str, _Found]]:
    """Yield each folder below the root with what is in it, sorted; several folders are listed at a time."""
    seen: set[tuple[int, int]] = set()
    level = [""]
    listed: dict[str, _Found] = {}
    pulse, count = Pulse(), 0

    def words(seconds: float) -> str:
        return f"listing {root}: {count:,} files in {len(listed):,} folders · {count / seconds:,.0f} files/s"

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="list") as pool:
        while level:
            below: list[str] = []
            for folder, found in zip(level, pool.map(lambda f: _list(root, f), level), strict=True):
                if found.identity in seen:
                    raise UserError(f"{root / folder} is a link to a folder that is listed already; remove the link")
                seen.add(found.identity)
                listed[folder] = found
                count += len(found.files)
                pulse.beat(words)
                below += (f"{folder}/{name}" if folder else name for name in found.folders)
            level = below
    yield from sorted(listed.items(), key=lambda item: item[0])


def _list(root: Path, folder: str) -> _Found:
    """List one folder, links followed."""
    path = root / folder

    def look() -> _Found:
        facts = path.stat()
        found = _Found((facts.st_dev, facts.st_ino), [], [], [], [])
        with os.scandir(path) as entries:
            for entry in entries:
                _sort(entry, found)
        for names in found[1:]:
            names.sort()
        return found

    try:
        return storage.perform(path, look)
    except OSError as error:
        raise UserError(
            f"{error.filename or path} cannot be listed: {error.strerror}; check the folder, its links and permissions"
        ) from None


def _sort(entry: "os.DirEntry[str]", found: _Found) -> None:
    """Add an entry of a folder to what was found there; raises OSError."""
    if found_noise := noise(entry.name):
        found.noise.append(found_noise)
        return
    try:
        facts = entry.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP) or not entry.is_symlink():
            raise
        found.links.append(entry.name)
        return
    if stat.S_ISDIR(facts.st_mode):
        found.folders.append(entry.name)
    elif stat.S_ISREG(facts.st_mode):
        found.files.append(_File(entry.name, facts.st_size, facts.st_mtime_ns))
