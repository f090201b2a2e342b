"""What a file system keeps when the machine stops: a log of what can be undone, over a real folder in memory.

What was not synced may be lost. Changes of names are kept in their order, as journals do it: of those after the last
that was synced, a crash undoes some, the latest first. Content that was written since a file was synced is there after
a crash, or a part of it, or as many zeros, or the content before. A sync that fails is not made good by the next one.
"""

import errno
import os
import random
import stat
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REAL = types.SimpleNamespace(**vars(os))  # the calls before a campaign replaces them


@dataclass
class Change:
    """A change of names."""

    undo: Callable[[], None]
    folders: tuple[int, ...]
    node: int  # what has, or had, the name


@dataclass
class Unsynced:
    """A file that was written since it was synced."""

    descriptor: int
    content: bytes  # that is safe
    poisoned: bool = False  # a sync has failed: the kernel believes that it is clean


class Disk:
    """A folder whose changes can be lost."""

    def __init__(self, root: Path, grave: Path) -> None:
        """`grave`: a folder on the same file system for what has lost its name."""
        self.root, self._grave, self._buried = str(root), grave, 0
        self._log: list[Change] = []
        self._safe = 0  # changes
        self._unsynced: dict[int, Unsynced] = {}
        self.undone = self.torn = 0

    def rename(self, old: str, new: str) -> None:
        """Rename over what is there."""
        node = REAL.lstat(old).st_ino
        bring_back = self._bury(new) if node != _node(new) else None
        folders = (_node(_parent(old)), _node(_parent(new)))
        REAL.rename(old, new)

        def undo() -> None:
            REAL.rename(new, old)
            if bring_back:
                bring_back()

        self._log.append(Change(undo, folders, node))

    def unlink(self, path: str) -> None:
        """Remove a file."""
        node, undo = _node(path), self._bury(path)
        REAL.unlink(path)
        assert undo is not None
        self._log.append(Change(undo, (_node(_parent(path)),), node))

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """Make a folder."""
        REAL.mkdir(path, mode)
        self._log.append(Change(lambda: REAL.rmdir(path), (_node(_parent(path)),), _node(path)))

    def rmdir(self, path: str) -> None:
        """Remove a folder."""
        node = _node(path)
        REAL.rmdir(path)
        self._log.append(Change(lambda: REAL.mkdir(path), (_node(_parent(path)),), node))

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open a file, and create or empty it."""
        new = flags & os.O_CREAT and not _node(path)
        before = b"" if new or not flags & os.O_TRUNC else _content(path)
        descriptor = int(REAL.open(path, flags, mode))
        if new:
            node = REAL.fstat(descriptor).st_ino
            self._log.append(Change(lambda: REAL.unlink(path), (_node(_parent(path)),), node))
        if before:
            self.wrote(descriptor, before)
        return descriptor

    def wrote(self, descriptor: int, before: bytes | None = None) -> None:
        """A file is about to be written, or was emptied: then `before` is what it held."""
        node = REAL.fstat(descriptor).st_ino
        if node not in self._unsynced:
            own = REAL.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)  # an open file of its own: locks end as they do
            self._unsynced[node] = Unsynced(own, _content(f"/proc/self/fd/{own}") if before is None else before)

    def sync(self, descriptor: int) -> None:
        """Sync a file, or the names in a folder."""
        node = REAL.fstat(descriptor).st_ino
        for number in range(len(self._log), self._safe, -1):
            change = self._log[number - 1]
            if node in change.folders or node == change.node:
                self._safe = number
                break
        if node in self._unsynced and not self._unsynced[node].poisoned:
            REAL.close(self._unsynced.pop(node).descriptor)

    def sync_failed(self, descriptor: int) -> None:
        """A sync has failed."""
        if unsynced := self._unsynced.get(REAL.fstat(descriptor).st_ino):
            unsynced.poisoned = True

    def crash(self, chance: random.Random) -> None:
        """Lose some of what is not safe."""
        for unsynced in self._unsynced.values():
            content = _content(f"/proc/self/fd/{unsynced.descriptor}")
            found = chance.choice(
                [content, unsynced.content, content[: chance.randint(0, len(content))], bytes(len(content))]
            )
            self.torn += found != content
            REAL.ftruncate(unsynced.descriptor, 0)
            REAL.pwrite(unsynced.descriptor, found, 0)
        keep = chance.choice([self._safe, len(self._log), chance.randint(self._safe, len(self._log))])
        self.undone += len(self._log) - keep
        while len(self._log) > keep:
            self._log.pop().undo()
        self.close()

    def close(self) -> None:
        """All that is there is safe."""
        for unsynced in self._unsynced.values():
            REAL.close(unsynced.descriptor)
        self._unsynced.clear()
        self._log.clear()
        self._safe = 0

    def _bury(self, path: str) -> Callable[[], None] | None:
        """Keep what a name stands for before it loses the name; returns what brings it back."""
        if not _node(path):
            return None
        if _is_folder(path):
            return lambda: REAL.mkdir(path)
        self._buried += 1
        grave = self._grave / str(self._buried)
        REAL.link(path, grave)
        return lambda: REAL.link(grave, path)


def _is_folder(path: str) -> bool:
    return _node(path) != 0 and stat.S_ISDIR(REAL.lstat(path).st_mode)


def _parent(path: str) -> str:
    return str(REAL.path.dirname(path))


def _node(path: str) -> int:
    try:
        return int(REAL.lstat(path).st_ino)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return 0


def _content(path: str) -> bytes:
    descriptor = REAL.open(path, os.O_RDONLY)
    try:
        return bytes(REAL.pread(descriptor, 1 << 30, 0))
    finally:
        REAL.close(descriptor)
