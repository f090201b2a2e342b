"""Atomic writes: a file is there whole or not at all."""

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

# Errors of file systems that cannot sync a folder; any other is raised
UNABLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)


@contextlib.contextmanager
def atomic(path: Path, *, durable: bool = True, via: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file for writing that takes its name when the block ends without an error; else nothing of it is left.

    A reader, or a crash at any moment, sees the old content or the new, never a part. Without `durable` the new content
    may be lost in a crash of the machine. It is written in the folder `via`, if one is given, and else beside the file.
    Raises OSError.
    """
    # Pods may share a host's name and a process id
    name = f".{path.name}.{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    temporary = (via or path.parent) / name
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def write_atomically(path: Path, data: bytes, *, durable: bool = True, via: Path | None = None) -> None:
    """Write a file whole (`atomic`); raises OSError."""
    with atomic(path, durable=durable, via=via) as file:
        file.write(data)


def write_json(path: Path, value: Any, *, via: Path | None = None) -> None:
    """Write a value as JSON, atomically; raises OSError."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode(), via=via)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none or it is not whole."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a crash of the machine, where its file system can; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
