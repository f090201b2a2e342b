"""The calls of `os` and `io` by which files are reached, in place of the real ones: they meet what a campaign has for
them (campaign.py), and what they change can be lost (losing.py). And the clock and the threads of a campaign.
"""

import contextlib
import errno
import io
import os
import shutil
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from campaign import HERE, KilledError, Process, World
from losing import REAL

REAL_OPEN = io.open


class Calls:
    """The calls of `os` and `io` by which files are reached, with what they meet."""

    def __init__(self, world: World) -> None:
        self.world, self.disk = world, world.disk
        self._root = str(world.root)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put them in place of the real ones."""
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self.rename)
        for name in ("unlink", "remove"):
            monkeypatch.setattr(os, name, self.unlink)
        for name in ("mkdir", "rmdir", "open", "write", "pwrite", "pwritev", "ftruncate", "fsync", "close", "dup2"):
            monkeypatch.setattr(os, name, getattr(self, name))
        for name in ("listdir", "scandir", "stat", "lstat", "utime"):
            monkeypatch.setattr(os, name, self._looking(name))
        for name in ("read", "pread", "readv"):
            monkeypatch.setattr(os, name, self._reading(name))
        monkeypatch.setattr(io, "open", self.open_file)
        monkeypatch.setattr(shutil, "_use_fd_functions", False)  # names in place of descriptors of folders

    def rename(self, old: Any, new: Any, **folders: Any) -> None:
        process, source, target = HERE.process, os.fspath(old), os.fspath(new)
        if process is None or not self._ours(target):
            REAL.rename(old, new, **folders)
            return
        self._change(process, "rename", target, lambda: self.disk.rename(source, target))
        self.world.changed(process, "rename", source)

    def unlink(self, path: Any, **folders: Any) -> None:
        self._by_name("unlink", path, **folders)

    def mkdir(self, path: Any, mode: int = 0o777, **folders: Any) -> None:
        self._by_name("mkdir", path, mode, **folders)

    def rmdir(self, path: Any, **folders: Any) -> None:
        self._by_name("rmdir", path, **folders)

    def _by_name(self, kind: str, path: Any, *more: Any, **folders: Any) -> None:
        """A change of one name: on the disk where it is one of ours, else as it is."""
        process, name = HERE.process, os.fspath(path)
        if process is None or not self._ours(name):
            getattr(REAL, kind)(path, *more, **folders)
            return
        self._change(process, kind, name, lambda: getattr(self.disk, kind)(name, *more))

    def open(self, path: Any, flags: int, mode: int = 0o777, **folders: Any) -> int:
        process, name = HERE.process, os.fspath(path)
        if process is None or not self._ours(name):
            return int(REAL.open(path, flags, mode, **folders))
        creates = bool(flags & os.O_CREAT) and not _exists(name)
        if not creates and not flags & os.O_TRUNC:
            process.meet("open", name)
            return self._opened(process, self.disk.open(name, flags, mode))
        found: list[int] = []

        def act() -> None:
            found.append(self.disk.open(name, flags, mode))

        try:
            self._change(process, "create" if creates else "truncate", name, act)
        except BaseException:
            for descriptor in found:
                REAL.close(descriptor)
            raise
        for descriptor in found[:-1]:
            REAL.close(descriptor)
        return self._opened(process, found[-1])

    def write(self, descriptor: int, data: Any) -> int:
        return self._write(descriptor, [data], lambda parts: REAL.write(descriptor, parts[0]))

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        return self._write(descriptor, [data], lambda parts: REAL.pwrite(descriptor, parts[0], offset))

    def pwritev(self, descriptor: int, parts: Any, offset: int, flags: int = 0) -> int:
        return self._write(descriptor, list(parts), lambda parts: REAL.pwritev(descriptor, parts, offset, flags))

    def ftruncate(self, descriptor: int, length: int) -> None:
        if (process := HERE.process) is None or not (name := self._name(descriptor)):
            REAL.ftruncate(descriptor, length)
            return

        def act() -> None:
            self.disk.wrote(descriptor)
            REAL.ftruncate(descriptor, length)

        self._change(process, "truncate", name, act, descriptor)

    def fsync(self, descriptor: int) -> None:
        if (process := HERE.process) is None or not (name := self._name(descriptor)):
            REAL.fsync(descriptor)
            return
        try:
            process.meet("fsync", name, descriptor)
        except OSError:
            self.disk.sync_failed(descriptor)
            raise
        self.disk.sync(descriptor)

    def close(self, descriptor: int) -> None:
        if HERE.process is not None:
            HERE.process.closed(descriptor)
        REAL.close(descriptor)

    def dup2(self, old: int, new: int, inheritable: bool = True) -> int:
        if HERE.process is not None:
            HERE.process.reopened(new)
        return int(REAL.dup2(old, new, inheritable))

    def open_file(self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
        if HERE.process is None or isinstance(file, int) or not self._ours(os.fspath(file)):
            return REAL_OPEN(file, mode, buffering, *rest, **options)
        further = {"r": os.O_RDONLY, "w": os.O_TRUNC, "x": os.O_EXCL, "a": os.O_APPEND}[mode[0]]
        creates = 0 if mode[0] == "r" else os.O_WRONLY | os.O_CREAT
        raw = Raw(os.open(file, creates | further | os.O_CLOEXEC, 0o666), mode[0] == "r", HERE.process)
        if buffering == 0:
            return raw
        buffered = io.BufferedReader(raw) if mode[0] == "r" else io.BufferedWriter(raw)  # type: ignore[type-var]
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **options)  # type: ignore[type-var]

    def _opened(self, process: Process, descriptor: int) -> int:
        process.descriptors.add(descriptor)
        return descriptor

    def _ours(self, path: Any) -> bool:
        return isinstance(path, str) and path.startswith(self._root)

    def _name(self, descriptor: int) -> str:
        name = REAL.readlink(f"/proc/self/fd/{descriptor}")
        return name if self._ours(name) else ""

    def _change(self, process: Process, call: str, path: str, act: Callable[[], None], descriptor: int = -1) -> None:
        fault = process.meet(call, path, descriptor)
        act()
        self.world.changed(process, call, path)
        if fault is not None and fault.kind == "doubled":
            act()
        if fault is not None and fault.kind == "unanswered":
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path)

    def _write(self, descriptor: int, parts: list[Any], write: Callable[[list[Any]], int]) -> int:
        process = HERE.process
        if process is None or not (name := self._name(descriptor)):
            return write(parts)
        fault = process.meet("write", name, descriptor)
        if process.full:
            process.full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        self.disk.wrote(descriptor)
        if fault is None or fault.kind == "unanswered":
            done = write(parts)
            self.world.changed(process, "write", name)
            if fault is not None:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), name)
            return done
        data = b"".join(parts)
        done = write([data[: len(data) // 2]]) if len(data) > 1 else 0
        self.world.changed(process, "write", name)
        if fault.kind == "torn":
            process.dead = True
            raise KilledError
        process.full = done > 0  # the rest finds no room
        if not done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        return done

    def _looking(self, name: str) -> Callable[..., Any]:
        real = getattr(REAL, name)

        def look(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            process = HERE.process
            if process is not None and not isinstance(path, int) and self._ours(os.fspath(path)):
                process.meet(name, os.fspath(path))
            return real(path, *arguments, **options)

        return look

    def _reading(self, name: str) -> Callable[..., Any]:
        real = getattr(REAL, name)

        def read(descriptor: int, *arguments: Any) -> Any:
            process = HERE.process
            if process is not None and (path := self._name(descriptor)):
                process.meet("read", path, descriptor)
            return real(descriptor, *arguments)

        return read


class Raw(io.RawIOBase):
    """An open file whose calls are those of `os`."""

    def __init__(self, descriptor: int, reads: bool, process: Process) -> None:
        self._descriptor, self._reads, self._process = descriptor, reads, process

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return not self._reads

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return os.write(self._descriptor, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._descriptor in self._process.descriptors:  # else its process has ended, and others use the number
                os.close(self._descriptor)


class Clock:
    """What modules use of `time`."""

    def __init__(self, world: World) -> None:
        self.world, self.sleep, self.perf_counter = world, world.sleep, self.monotonic

    def monotonic(self) -> float:
        """Seconds since the world began."""
        return self.world.time

    def time(self) -> float:
        """Seconds on this process' wall."""
        return 1.8e9 + self.world.time + (HERE.process.skew if HERE.process else 0.0)


class Inline:
    """A thread whose work is done when it is started."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...] = (), **options: Any) -> None:
        self._work = lambda: target(*args)

    def start(self) -> None:
        self._work()

    def join(self) -> None: ...

    def is_alive(self) -> bool:
        return False


class Over(threading.Event):
    """An event that is not waited for."""

    def wait(self, timeout: float | None = None) -> bool:
        return True


def inline(*, over: bool = False) -> types.SimpleNamespace:
    """What a module uses of `threading`, without threads; with `over` what waits for an end finds it at once."""
    return types.SimpleNamespace(**{**vars(threading), "Thread": Inline, **({"Event": Over} if over else {})})


@contextlib.contextmanager
def installed(world: World) -> Iterator[pytest.MonkeyPatch]:
    """Put the world's calls in place."""
    with pytest.MonkeyPatch.context() as patch:
        Calls(world).install(patch)
        patch.setenv("TRAINYARD_JOB", "")
        yield patch


def _exists(path: str) -> bool:
    try:
        REAL.lstat(path)
    except OSError:
        return False
    return True
