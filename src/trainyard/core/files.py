"""Files that other processes read meanwhile: whole writes, renames that a network may repeat, notes in JSON.

Each call here is made once; `storage.py` makes calls again while storage fails.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from trainyard.core.exits import UserError

# Errors of file systems that cannot sync a folder; any other is raised
UNABLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)
MISSING = (FileNotFoundError, NotADirectoryError)


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
        rename(temporary, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # writing to an open file tells no name
        raise
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def rename(old: Path, new: Path) -> None:
    """Rename a file over another, or a folder. Raises OSError.

    A network client repeats a call whose answer was lost; what was done then is not there to be done again.
    """
    found = old.lstat()
    try:
        old.rename(new)
    except FileNotFoundError:
        if not _is(new, found):
            raise


def _is(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), found)
    except MISSING:
        return False


def parse_json(data: bytes | str) -> Any:
    """Read JSON; raises ValueError, also where it is nested deeper than anything that is written here."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def peek_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that may as well be missing, such as another process's heartbeat: once, without a word."""
    try:
        value = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def section(note: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a part of a note that is an object; empty where there is none, whatever stands in its place."""
    found = note.get(key)
    return found if isinstance(found, dict) else {}


def value_at(tree: Any, *keys: str) -> Any:
    """Return what lies at a path of keys in nested maps; None where there is nothing."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def fits(note: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> bool:
    """Whether each of the entries of a note that `kinds` names is of one of its types, as far as it is there.

    Whole numbers, of any of its entries, have 64 bits at most, as whatever reads them expects.
    """
    sized = all(abs(value) < 1 << 63 for value in note.values() if type(value) is int)
    return sized and all(type(note[key]) in kind for key, kind in kinds.items() if key in note)


def whole(note: Mapping[str, Any], key: str) -> int:
    """Return a whole number of a note; 0 where it has none, whatever stands in its place."""
    value = note.get(key)
    return value if type(value) is int else 0


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


def json_checksum(value: Any) -> str:
    """SHA-256 of what JSON says, however it is spaced and ordered."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def cache_folder() -> Path:
    """Where what can be made or fetched again is kept on this machine; raises UserError where nothing says."""
    if named := os.environ.get("TRAINYARD_CACHE"):
        return Path(named)
    if (own := home()) is None:
        raise UserError(
            f"there is no home: HOME is not set, and uid {os.getuid()} has no entry in /etc/passwd; set HOME or "
            "TRAINYARD_CACHE to a folder that can be written"
        )
    return own / ".cache" / "trainyard"


def home() -> Path | None:
    """Return the user's home; None where HOME is not set and the user has no entry in /etc/passwd."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def drop_cached(descriptor: int, offset: int = 0, size: int = 0) -> None:
    """Drop what the kernel keeps of an open file, so that the next read asks the storage; `size` 0: to its end."""
    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def drop_cached_file(path: Path) -> None:
    """Drop what the kernel keeps of a file before a second look at it, if it can be opened."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        drop_cached(file.fileno())
