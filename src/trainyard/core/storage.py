"""Storage that may fail for a while: an object whose calls are made again until the storage answers.

This is the only place that retries calls on files. An error by which storage says that it does not answer now
(`exits.STORAGE`) is retried with the file reopened, for TRAINYARD_STORAGE_SECONDS (120) after the first one; then the
run ends with a code that is retried. A call that never returns is not bounded here but by the watchdog.
"""

import contextlib
import errno
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from trainyard.core.exits import FULL, LIMITS, STORAGE, Exit, ExitError, UserError, too_many_files
from trainyard.core.files import MISSING, atomic, parse_json
from trainyard.core.variables import STORAGE_SECONDS, read_number

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
LOOKS = 3
NO_FILE = (errno.EISDIR, errno.ELOOP)  # something else has a file's name: a folder, links that lead nowhere

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class StorageError(ExitError):
    """Storage that has failed for as long as it is waited for."""

    def __init__(self, message: str, code: int = Exit.STORAGE, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, code, details)


class Tries:
    """The tries of a call that has just failed: the pauses between them double, and the time for them is bounded."""

    def __init__(self) -> None:
        self.seconds = read_number(STORAGE_SECONDS)
        self.pause = FIRST_PAUSE  # seconds before the next try
        self._begun = time.monotonic()

    @property
    def passed(self) -> float:
        """Seconds since the call failed."""
        return time.monotonic() - self._begun

    def wait(self) -> None:
        """Wait before the next try."""
        time.sleep(self.pause)
        self.pause = min(2 * self.pause, LONGEST_PAUSE)


class Storage:
    """Files and folders on storage that may fail for a while; every call is made again while it does.

    Errors that are not storage's are believed once they were seen LOOKS times, and a missing file at once. All calls
    raise StorageError where the storage has failed for too long, and UserError at a limit of open files; otherwise they
    raise OSError unless they say more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[int] = set()  # threads

    def perform(
        self, what: object, action: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """Call `action`, which opens what it uses, and again from its beginning while storage fails.

        `what` is what messages call the file or folder.
        """
        return self._repeat(what, lambda: action(*args, **named))

    def recover(
        self, what: object, action: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """As `perform`, after a call on an open file has failed: all errors but a full volume are the storage's."""
        return self._repeat(what, lambda: action(*args, **named), existed=True)

    def read_bytes(self, path: Path, *, listed: bool = False) -> bytes:
        """Read a file; `listed`: a manifest says that it is there, so a missing one is looked for LOOKS times."""
        return self._repeat(path, path.read_bytes, listed=listed)

    def read_text(self, path: Path) -> str:
        """Read a file of text."""
        return self._repeat(path, path.read_text)

    def read_json(self, path: Path) -> dict[str, Any]:
        """Read a JSON object; empty if there is none or it is not whole. Raises StorageError, and UserError."""
        try:
            value = parse_json(self.read_bytes(path))
        except (*MISSING, ValueError):
            return {}
        except OSError as error:
            if error.errno in NO_FILE:
                return {}
            raise unreadable(path, error) from error
        return value if isinstance(value, dict) else {}

    def hash_file(self, path: Path) -> str:
        """SHA-256 of a file's content, in hexadecimal."""

        def digest() -> str:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        return self._repeat(path, digest)

    def open_file(self, path: Path, buffering: int = -1) -> BinaryIO:
        """Open a file for reading."""
        return self._repeat(path, lambda: path.open("rb", buffering))

    def stat(self, path: Path, *, listed: bool = False) -> os.stat_result:
        """Look at a file, links followed; `listed` as in `read_bytes`."""
        return self._repeat(path, path.stat, listed=listed)

    def exists(self, path: Path) -> bool:
        """Tell whether something has a name; raises StorageError, and UserError."""
        try:
            return self._repeat(path, path.exists)
        except OSError as error:
            raise unreadable(path, error) from error

    def list_folder(self, folder: Path) -> list[Path]:
        """List a folder; empty if there is no folder. Raises StorageError, and UserError."""
        try:
            return self._repeat(folder, lambda: list(folder.iterdir()))
        except MISSING:
            return []
        except OSError as error:
            raise unreadable(folder, error) from error

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, unless they are there."""
        self._repeat(folder, lambda: folder.mkdir(parents=True, exist_ok=True))

    def write_file(self, path: Path, data: bytes, *, durable: bool = True, via: Path | None = None) -> None:
        """Write a file whole (`files.atomic`). What need not be durable is written once."""

        def write() -> None:
            with atomic(path, durable=durable, via=via) as file:
                file.write(data)

        if durable:
            self._repeat(path, write)
        else:
            write()

    def write_json(self, path: Path, value: Any, *, via: Path | None = None) -> None:
        """Write a value as JSON, whole."""
        self.write_file(path, (json.dumps(value, indent=2) + "\n").encode(), via=via)

    def _repeat(
        self, what: object, action: Callable[[], Result], *, listed: bool = False, existed: bool = False
    ) -> Result:
        """Call `action`, and again while storage fails, once at least."""
        try:
            return action()
        except OSError as error:
            if error.errno in LIMITS:
                raise too_many_files(what) from error
            if error.errno in FULL or (isinstance(error, MISSING) and not (listed or existed)):
                raise
            return self._call_again(what, action, existed, error)

    def _call_again(self, what: object, action: Callable[[], Result], existed: bool, error: OSError) -> Result:
        tries = Tries()
        waits = existed or error.errno in STORAGE
        looks = 0 if waits else 1  # at errors that are not storage's, in a row
        bound = f"retried for up to {tries.seconds:.0f} s" if waits else "looking again"
        self._enter(f"{what}: {error.strerror or error}; {bound}")
        try:
            while True:
                tries.wait()
                try:
                    return action()
                except OSError as again:
                    if again.errno in LIMITS:
                        raise too_many_files(what) from again
                    passed, error = tries.passed, again
                    waits = error.errno in STORAGE or (existed and error.errno not in FULL)
                    looks = 0 if waits else looks + 1
                    if passed >= tries.seconds if waits else looks >= LOOKS:
                        break
        finally:
            self._leave(tries.passed)
        if error.errno not in STORAGE:
            raise error
        raise StorageError(
            f"{what}: {error.strerror or error} ({errno.errorcode.get(error.errno or 0)}) for {passed:.0f} s: the "
            "storage does not answer; see the claim's server and the node's mount. The run is retried and resumes",
            details={"errno": error.errno},
        ) from error

    def _enter(self, text: str) -> None:
        """Say that storage fails, once while it does, however many threads wait for it."""
        with self._lock:
            first = not self._waiting
            self._waiting.add(threading.get_ident())
        if first:
            _say(text)

    def _leave(self, seconds: float) -> None:
        with self._lock:
            self._waiting.discard(threading.get_ident())
            last = not self._waiting
        if last:
            _say(f"no file is waited for any more, after {seconds:.1f} s")


storage = Storage()  # this process's; its threads say together what they wait for


class Appender:
    """A file to which lines are appended; each is there as soon as it is written, also where storage failed between.

    Nothing is written to a file that was opened when it was not `ours` any more: by then it may be another job's. That
    one replaces the file, so what was opened before has no name.
    """

    def __init__(self, path: Path, ours: Callable[[], bool] = lambda: True) -> None:
        self._path, self._ours = path, ours
        self._file = storage.perform(path, self._open)
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
            storage.perform(self._path, self._write_again, data)

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
    """Return the words for a file that cannot be read, though its storage answers."""
    return UserError(f"{path} cannot be read ({error.strerror}); check the claim and its permissions")


def _say(text: str) -> None:
    print(f"storage: {text}", file=sys.stderr, flush=True)
