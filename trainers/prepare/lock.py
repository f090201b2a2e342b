"""One preparation per folder: a second one waits, and prints what for."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainers.exits import Exit, ExitError


@contextmanager
def exclusive(
    path: Path, wait_seconds: float, say: Callable[[str], None], every: float = 5.0, *, shared: bool = False
) -> Iterator[None]:
    """Hold the lock file while the block runs; wait for another holder, with a line every few seconds.

    Shared locks coexist, and exclude only exclusive ones.

    The kernel releases the lock when its process ends for any reason. On a file system without locks there is none:
    shards are published whole by rename, and two preparations of one plan write the same bytes.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        if _acquire((descriptor, kind), path, wait_seconds, say, every):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(lock: tuple[int, int], path: Path, wait_seconds: float, say: Callable[[str], None], every: float) -> bool:
    """Try until this process has the lock (True), or the file system turns out to have no locks (False)."""
    descriptor, kind = lock
    started = said = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL):
                say(f"{path} cannot be locked on this file system ({error.strerror}): let only one preparation run")
                return False
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        now = time.monotonic()
        holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "another process"
        if now - started >= wait_seconds:
            raise ExitError(
                f"{path.parent.parent} is being prepared by {holder}; waited {now - started:.0f} s; run the same "
                "command when it is done, or end that one",
                Exit.FAILED,
            )
        if now - said >= every or said == started:
            say(f"waiting for {holder}, which is preparing {path.parent.parent}")
            said = now + 1e-9
        time.sleep(min(0.2, every))
