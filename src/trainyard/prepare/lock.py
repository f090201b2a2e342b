"""One preparation per folder: a second one waits, and prints what for.

The kernel releases a lock when its process ends for any reason, but a file server may keep the lock of a machine that
died (NFSv3 keeps it until that machine is back). So a holder also changes the lock's file every few seconds, and who
waits watches it: where it stands still, the file is replaced, and the dead holder keeps the lock of a file without a
name. No clocks are compared. Should that holder wake up after all, no harm is done: shards are published whole, by a
rename, and two preparations of one plan write the same bytes.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.core.exits import Exit, ExitError

BEAT_SECONDS = 10.0
STALE_SECONDS = 180.0  # a holder that has not changed its file for so long is dead
BEAT = ", beat "  # version 0.1.0 writes none, and is waited for


@contextmanager
def exclusive(
    path: Path, wait_seconds: float, say: Callable[[str], None], every: float = 5.0, *, shared: bool = False
) -> Iterator[None]:
    """Hold the lock file while the block runs; wait for another holder, with a line every few seconds.

    Shared locks coexist, and exclude only exclusive ones. On a file system without locks there is none. Raises
    ExitError after `wait_seconds`, OSError.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor, locked = _acquire(path, kind, wait_seconds, say, every)
    ended = threading.Event()
    beats = threading.Thread(target=_beat, args=(descriptor, ended), name="lock", daemon=True)
    try:
        if locked:
            os.ftruncate(descriptor, 0)
            _show_life(descriptor, 0)  # before anybody can be told whom to wait for
            beats.start()
        yield
    finally:
        ended.set()
        if locked:
            beats.join()
        os.close(descriptor)


def _acquire(path: Path, kind: int, wait_seconds: float, say: Callable[[str], None], every: float) -> tuple[int, bool]:
    """Try until this process has the lock (True), or the file system turns out to have no locks (False)."""
    started = said = changed = time.monotonic()
    seen = ""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)  # opening asks a server for news
        with contextlib.ExitStack() as unless_locked:
            unless_locked.callback(os.close, descriptor)
            locked = _try(descriptor, kind, path, say)
            if locked is False or (locked and _is(descriptor, path)):
                unless_locked.pop_all()
                return descriptor, locked
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "another process"
            now = time.monotonic()
            changed, seen = (now, holder) if holder != seen else (changed, seen)
            name = holder.partition(BEAT)[0]
            if now - changed >= STALE_SECONDS and BEAT in holder and _is(descriptor, path):
                say(
                    f"{name} prepared {path.parent.parent} and has shown no life for {now - changed:.0f} s: taking over"
                )
                path.unlink(missing_ok=True)
                continue
        if now - started >= wait_seconds:
            raise ExitError(
                f"{path.parent.parent} is being prepared by {name}; waited {now - started:.0f} s; run the same "
                "command when it is done, or end that one",
                Exit.FAILED,
            )
        if now - said >= every or said == started:
            say(f"waiting for {name}, which is preparing {path.parent.parent}")
            said = now + 1e-9
        time.sleep(min(0.2, every))


def _try(descriptor: int, kind: int, path: Path, say: Callable[[str], None]) -> bool | None:
    """Lock a file: True, or False where that is not possible on its file system, or None while another has it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL):
            say(f"{path} cannot be locked on this file system ({error.strerror}): let only one preparation run")
            return False
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return None
    return True


def _is(descriptor: int, path: Path) -> bool:
    """Whether an open file still has its name: another may just have replaced it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _beat(descriptor: int, ended: threading.Event) -> None:
    """Change the file's content until the end; nothing but that depends on it, so errors are no matter."""
    for number in itertools.count(1):
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
        if ended.wait(BEAT_SECONDS):
            return
        _show_life(descriptor, number)


def _show_life(descriptor: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}{BEAT}{number:010d}\n".encode(), 0)
