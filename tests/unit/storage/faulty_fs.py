"""A file system that passes every call on to another folder, with the faults that it is told of. A program of its own.

    faulty_fs.py FOLDER MOUNT

It reads a command a line (JSON) and answers each with a line:

    {"fail": RULE}     calls fail: the first `first` that match, and of the others a share `rate`. null ends it
    {"delay": SECONDS} every call takes that much longer
    {"hold": RULE}     the next call that matches waits; a line {"held": CALL} says so
    {"release": true}  the held call continues
    {"report": true}   how many calls there were, and how many failed

A RULE has `ops` (names of calls) and `path` (a regular expression that is searched for). After ESTALE a file handle
stays stale until the file is opened again, as on NFS.
"""

import errno
import itertools
import json
import os
import random
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from mfusepy import FUSE, FuseOSError, Operations

FACTS = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_ino", "st_dev")
TIMES = ("st_atime", "st_mtime", "st_ctime")


class Rule:
    """Which calls are meant."""

    def __init__(self, ops: list[str], path: str = "") -> None:
        self._ops, self._path = frozenset(ops), re.compile(path)

    def fits(self, op: str, path: str) -> bool:
        return op in self._ops and self._path.search(path) is not None


class Failing(Rule):
    """Calls that fail, with the errors in turn."""

    def __init__(self, rate: float, errors: list[str], first: int = 1, **which: Any) -> None:
        super().__init__(**which)
        self._rate, self._first = rate, first
        self._errors = itertools.cycle([getattr(errno, name) for name in errors])
        self._chance = random.Random(1)

    def next_error(self) -> int:
        """The error of the next call that fits; 0 if that one does not fail."""
        self._first -= 1
        return next(self._errors) if self._first >= 0 or self._chance.random() < self._rate else 0


class Faults:
    """What happens to calls, as commands set it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: Failing | None = None
        self._hold: Rule | None = None
        self._go = threading.Event()
        self._delay = 0.0
        self._stale: set[int] = set()
        self._calls = self._failed = 0

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command; returns the answer."""
        if "fail" in command:
            self._failing = Failing(**command["fail"]) if command["fail"] else None
        if "delay" in command:
            self._delay = command["delay"]
        if "hold" in command:
            self._go.clear()
            self._hold = Rule(**command["hold"])
        if "release" in command:
            self._hold = None
            self._go.set()
        return {"calls": self._calls, "failed": self._failed}

    def meet(self, op: str, path: str, handle: int = -1) -> None:
        """What a call meets before it is passed on; raises FuseOSError."""
        with self._lock:
            self._calls += 1
            hold = self._hold is not None and self._hold.fits(op, path)
            if hold:
                self._hold = None
        if hold:
            say({"held": f"{op} {path}"})
            self._go.wait()
        time.sleep(self._delay)
        with self._lock:
            error = errno.ESTALE if handle in self._stale else 0
            if not error and self._failing is not None and self._failing.fits(op, path):
                error = self._failing.next_error()
            if not error:
                return
            self._failed += 1
            if error == errno.ESTALE and handle >= 0:
                self._stale.add(handle)
        raise FuseOSError(error)

    def forget(self, handle: int) -> None:
        with self._lock:
            self._stale.discard(handle)


class Passing(Operations):
    """Passes calls on."""

    use_ns = True

    def __init__(self, root: str, faults: Faults) -> None:
        self._root, self._faults = root, faults

    def _at(self, op: str, path: str) -> Path:
        self._faults.meet(op, path)
        return Path(self._root + path)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = self._at("getattr", path).lstat()
        return {name: getattr(found, name) for name in FACTS} | {name: getattr(found, f"{name}_ns") for name in TIMES}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *(entry.name for entry in self._at("readdir", path).iterdir())]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at("statfs", path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_") and name != "f_fsid"}

    def mkdir(self, path: str, mode: int) -> int:
        self._at("mkdir", path).mkdir(mode)
        return 0

    def rmdir(self, path: str) -> int:
        self._at("rmdir", path).rmdir()
        return 0

    def unlink(self, path: str) -> int:
        self._at("unlink", path).unlink()
        return 0

    def rename(self, old: str, new: str) -> int:
        self._at("rename", old).rename(self._root + new)
        return 0

    def link(self, target: str, source: str) -> int:
        self._at("link", target).hardlink_to(self._root + source)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        self._at("chmod", path).chmod(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self._at("chown", path), uid, gid)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._at("utimens", path), ns=times)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._at("truncate", path), length)
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at("create", path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path: str, flags: int) -> int:
        # The kernel truncates and appends by calls of their own
        return os.open(self._at("open", path), flags & ~(os.O_TRUNC | os.O_APPEND))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._faults.meet("read", path, fh)
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._faults.meet("write", path, fh)
        return os.pwrite(fh, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._faults.meet("fsync", path, fh)
        os.fsync(fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._faults.meet("fsyncdir", path)
        return 0

    def flush(self, path: str, fh: int) -> int:
        self._faults.meet("flush", path)
        return 0

    def release(self, path: str, fh: int) -> int:
        self._faults.forget(fh)
        os.close(fh)
        return 0


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def obey_commands(faults: Faults) -> None:
    """Carry out commands until the test ends, and this process with it."""
    for line in sys.stdin:
        say(faults.obey(json.loads(line)))
    os._exit(0)


if __name__ == "__main__":
    folder, mount = sys.argv[1:]
    faults = Faults()
    threading.Thread(target=obey_commands, args=(faults,), daemon=True).start()
    # No cache of content: every read and write of a program arrives here
    FUSE(
        Passing(folder, faults), mount, foreground=True, direct_io=True, attr_timeout=1, entry_timeout=1,
        negative_timeout=0, default_permissions=True, max_threads=64, fsname="faulty",
    )  # fmt: skip
