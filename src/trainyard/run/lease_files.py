"""The few calls on shared storage that the lease of a run directory is made of, as one machine makes them.

They are gathered here so that tests can run the lease over a model of network storage: caches that lag behind, answers
that are lost, machines that stop between any two calls. This module is the real storage and clock.
"""

import contextlib
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Protocol

from trainyard.core import files

now = time.monotonic
sleep = time.sleep


class Calls(Protocol):
    """Storage as one machine sees it; every call but `now` and `sleep` raises OSError."""

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, as old as this machine's cache may be."""

    def fresh_names(self, folder: Path) -> list[str]:
        """Return the names in a folder, as they were after this call began."""

    def read(self, path: Path) -> bytes:
        """Return a file's content, as it was after this call began."""

    def write(self, path: Path, data: bytes) -> None:
        """Create a file, or replace its content; on the server when this returns."""

    def overwrite(self, path: Path, data: bytes) -> None:
        """Replace the content of a file that exists; FileNotFoundError without one."""

    def make(self, folder: Path) -> None:
        """Create a folder; FileExistsError if the name is taken."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file over another, or a folder; an OSError where `new` is a folder that is not empty."""

    def remove(self, path: Path) -> None:
        """Remove a file; IsADirectoryError for a folder."""

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder; an OSError if it is not empty."""

    def now(self) -> float:
        """Seconds of this machine's own monotonic clock."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


def unique() -> str:
    """Return a name that no other process on any machine has: pods may share a process id, and even a host name."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return [path.name for path in folder.iterdir()]


def fresh_names(folder: Path) -> list[str]:
    """Return the names in a folder; a client that has changed a folder itself asks the server for its names again."""
    probe = folder / f".look-{unique()}"
    probe.mkdir(exist_ok=True)  # a call whose answer was lost is repeated
    with contextlib.suppress(FileNotFoundError):  # others may tidy up
        probe.rmdir()
    return [name for name in names(folder) if name != probe.name]


def read(path: Path) -> bytes:
    """Return a file's content; opening a file asks the server whether it has changed."""
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    """Create a file, or replace its content."""
    _write(path, data, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


def overwrite(path: Path, data: bytes) -> None:
    """Replace the content of a file that exists."""
    _write(path, data, os.O_WRONLY | os.O_TRUNC)


def make(folder: Path) -> None:
    """Create a folder."""
    folder.mkdir()


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder."""
    files.rename(old, new)


def remove(path: Path) -> None:
    """Remove a file."""
    path.unlink()


def remove_folder(folder: Path) -> None:
    """Remove an empty folder."""
    folder.rmdir()


def _write(path: Path, data: bytes, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        done = 0
        while done < len(data):  # a volume that is nearly full takes a part
            done += os.write(descriptor, data[done:])
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)
