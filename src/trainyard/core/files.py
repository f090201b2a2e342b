"""Files on storage that may fail for a while: atomic writes, and reads that are retried.

A file is there whole or not at all. An error by which storage says that it does not answer now (`exits.STORAGE`) is
retried with the file reopened, for TRAINYARD_STORAGE_SECONDS (120) after the first one; then the run ends with a code
that is retried. A call that never returns is not bounded here but by the watchdog.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from trainyard.core.exits import FULL, LIMITS, STORAGE, Exit, ExitError, UserError, too_many_files

# Errors of file systems that cannot sync a folder; any other is raised
UNABLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)
# A lost NFS or Gluster server is replaced in about a minute; and less than half of comm.hang_seconds
DEFAULT_SECONDS = 120.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
MISSING = (FileNotFoundError, NotADirectoryError)
LOOKS = 3

Result = TypeVar("Result")

_lock = threading.Lock()
_retrying: set[int] = set()  # threads


class StorageError(ExitError):
    """Storage that has failed for as long as it is waited for."""

    def __init__(self, message: str, code: int = Exit.STORAGE, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, code, details)


def patience() -> float:
    """Seconds for which storage that fails is retried."""
    return float(os.environ.get("TRAINYARD_STORAGE_SECONDS", DEFAULT_SECONDS))


def retried(action: Callable[[], Result], what: object, *, listed: bool = False, existed: bool = False) -> Result:
    """The result of `action`, which opens what it uses; it is repeated while storage fails, once at least.

    Other errors are believed once they were seen LOOKS times, and a missing file at once; with `listed`, since a
    manifest says that the file is there, that too after LOOKS. With `existed`, since it worked before, all errors but a
    full volume are storage's. Raises StorageError at the end, OSError where the error is not one of storage's, and
    UserError at a limit of open files.
    """
    try:
        return action()
    except OSError as error:
        if error.errno in LIMITS:
            raise too_many_files(what) from error
        if error.errno in FULL or (isinstance(error, MISSING) and not (listed or existed)):
            raise
        return _retry(action, what, existed, error)


def _retry(action: Callable[[], Result], what: object, existed: bool, error: OSError) -> Result:
    seconds, begun, pause = patience(), time.monotonic(), FIRST_PAUSE
    waits = existed or error.errno in STORAGE
    looks = 0 if waits else 1  # at errors that are not storage's, in a row
    bound = f"retried for up to {seconds:.0f} s" if waits else "looking again"
    _enter(f"{what}: {error.strerror or error}; {bound}")
    try:
        while True:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                return action()
            except OSError as again:
                if again.errno in LIMITS:
                    raise too_many_files(what) from again
                passed, error = time.monotonic() - begun, again
                waits = error.errno in STORAGE or (existed and error.errno not in FULL)
                looks = 0 if waits else looks + 1
                if passed >= seconds if waits else looks >= LOOKS:
                    break
    finally:
        _leave(time.monotonic() - begun)
    if error.errno not in STORAGE:
        raise error
    raise StorageError(
        f"{what}: {error.strerror or error} ({errno.errorcode.get(error.errno or 0)}) for {passed:.0f} s: the storage "
        "does not answer; see the claim's server and the node's mount. The run is retried and resumes",
        details={"errno": error.errno},
    ) from error


def _enter(text: str) -> None:
    """Say that storage fails, once while it does, however many threads wait for it."""
    with _lock:
        first = not _retrying
        _retrying.add(threading.get_ident())
    if first:
        _say(text)


def _leave(seconds: float) -> None:
    with _lock:
        _retrying.discard(threading.get_ident())
        last = not _retrying
    if last:
        _say(f"no file is waited for any more, after {seconds:.1f} s")


def _say(text: str) -> None:
    print(f"storage: {text}", file=sys.stderr, flush=True)


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


def write_atomically(path: Path, data: bytes, *, durable: bool = True, via: Path | None = None) -> None:
    """Write a file whole (`atomic`); raises OSError, and StorageError.

    What need not be durable is not retried either.
    """

    def write() -> None:
        with atomic(path, durable=durable, via=via) as file:
            file.write(data)

    if durable:
        retried(write, path)
    else:
        write()


def write_json(path: Path, value: Any, *, via: Path | None = None) -> None:
    """Write a value as JSON, atomically; raises OSError, and StorageError."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode(), via=via)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none or it is not whole. Raises StorageError, and UserError."""
    try:
        value = json.loads(retried(path.read_bytes, path))
    except (*MISSING, ValueError):
        return {}
    except OSError as error:
        raise unreadable(path, error) from error
    return value if isinstance(value, dict) else {}


class Appender:
    """A file to which lines are appended; each is there as soon as it is written, also where storage failed between.

    Nothing is written to a file that was opened when it was not `ours` any more: by then it may be another job's. That
    one replaces the file, so what was opened before has no name.
    """

    def __init__(self, path: Path, ours: Callable[[], bool] = lambda: True) -> None:
        self._path, self._ours = path, ours
        self._file = retried(self._open, path)
        self._lost = not ours()

    def write(self, line: str) -> None:
        """Append a line, which ends with a newline, or do nothing; raises OSError and StorageError."""
        data = line.encode()
        if self._lost:
            return
        try:
            self._append(data)
        except OSError as error:
            self._lost = not self._ours()
            if self._lost:
                return
            if error.errno not in STORAGE:
                error.filename = error.filename or str(self._path)
                raise
            retried(lambda: self._write_again(data), self._path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> BinaryIO:
        return self._path.open("ab", buffering=0)

    def _append(self, data: bytes) -> None:
        """Write all of it: a volume that is nearly full takes a part."""
        rest = memoryview(data)
        while rest:
            count = self._file.write(rest)
            if not count:
                raise OSError(errno.EIO, "nothing was written")
            rest = rest[count:]

    def _write_again(self, data: bytes) -> None:
        """Write what may be there already, or in part: a part becomes a line of its own, which readers pass over."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._file = self._open()
        self._lost = not self._ours()
        if self._lost:
            return
        with self._path.open("rb") as written:
            size = written.seek(0, os.SEEK_END)
            written.seek(max(0, size - len(data)))
            tail = written.read()
        if tail != data:
            self._append(data if not tail or tail.endswith(b"\n") else b"\n" + data)


def unreadable(path: Path, error: OSError) -> UserError:
    """The words for a file that cannot be read, though its storage answers."""
    return UserError(f"{path} cannot be read ({error.strerror}); check the claim and its permissions")


def peek_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that may as well be missing, such as another process's heartbeat: once, without a word."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def fits(note: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> bool:
    """Whether each of the entries of a note that `kinds` names is of one of its types, as far as it is there.

    Whole numbers, of any of its entries, have 64 bits at most, as whatever reads them expects.
    """
    sized = all(abs(value) < 1 << 63 for value in note.values() if type(value) is int)
    return sized and all(type(note[key]) in kind for key, kind in kinds.items() if key in note)


def whole(note: Mapping[str, Any], key: str) -> int:
    """A whole number of a note; 0 where it has none, whatever stands in its place."""
    value = note.get(key)
    return value if type(value) is int else 0


def entries(folder: Path) -> list[Path]:
    """The entries of a folder; none if there is no folder. Raises StorageError, and UserError."""
    try:
        return retried(lambda: list(folder.iterdir()), folder)
    except MISSING:
        return []
    except OSError as error:
        raise unreadable(folder, error) from error


def exists(path: Path) -> bool:
    """Whether something has a name; raises StorageError, and UserError."""
    try:
        return retried(path.exists, path)
    except OSError as error:
        raise unreadable(path, error) from error


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
    """SHA-256 of a file's content, in hexadecimal; raises OSError, and StorageError."""

    def digest() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return retried(digest, path)


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
    """The user's home; None where HOME is not set and the user has no entry in /etc/passwd."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def forget_cached(descriptor: int, offset: int = 0, size: int = 0) -> None:
    """Drop what the kernel keeps of an open file, so that the next read asks the storage; `size` 0: to its end."""
    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def forget(path: Path) -> None:
    """Drop what the kernel keeps of a file before a second look at it, if it can be opened."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        forget_cached(file.fileno())
