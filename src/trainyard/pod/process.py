"""Duties of a pod's first process for itself and its children: signals, and ends that do not come."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from trainyard.core.exits import Exit, write_termination_message

LOOK_SECONDS = 1.0
FIRST_SECONDS = 2.0  # for what is done before SIGTERM ends a process, and for the last lines of the logs
# A process that ends frees its memory within seconds, also a large one's
ENDING_SECONDS = 10.0
# A process that was stopped (SIGSTOP) runs again first: else it takes no signal but SIGKILL
TOLD_TO_END = (signal.SIGCONT, signal.SIGTERM)
# Of /proc/PID/stat, counted from the state: fields 33 and 52 of proc(5), the latter a status as wait(2) gives it
IGNORED, EXIT_CODE = 30, 49


def end_on_sigterm(first: Callable[[], None] | None = None) -> None:
    """End with 143 on SIGTERM, until something else handles it; `first` gets two seconds, as storage may hang.

    The kernel drops signals of a container's first process that have no handler, so an uninstall would otherwise take
    the whole grace period while torch is imported.
    """

    def end(*_: object) -> None:
        if first is not None:
            thread = threading.Thread(target=first, daemon=True)
            thread.start()
            thread.join(FIRST_SECONDS)
        os._exit(Exit.STOPPED)

    signal.signal(signal.SIGTERM, end)


def end_with_hung_children(grace: float) -> None:
    """Watch this process's children, and end with the code of one that has ended but cannot leave.

    A process has left only when all of its threads have, and on FUSE one that waits for storage leaves when that
    answers; wait(2) does not return before. The other children get `grace` seconds to end.
    """
    threading.Thread(target=_watch, args=(grace,), name="children", daemon=True).start()


def _watch(grace: float) -> None:
    since: dict[int, float] = {}
    while True:
        time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        since = {pid: since.get(pid, now) for pid in children() if hangs_while_ending(pid)}
        late = [pid for pid, begun in since.items() if now - begun > ENDING_SECONDS]
        if late:
            _end(late[0], grace)


def _end(late: int, grace: float) -> NoReturn:
    """Say why this process ends, and end it with its other children."""
    code = _code(late) or int(Exit.HANG)
    message = (
        f"process {late} has ended with {code}, but a thread of it waits in the kernel for storage that does not "
        "answer, and nothing can end that; see the claim's server and the node's mount. The pod ends when storage "
        "answers, or its mount is aborted"
    )
    end_with_children(code, grace, message)


def end_with_children(code: int, grace: float, message: str) -> NoReturn:
    """Say why, end the children, which get `grace` seconds, and leave, whatever the main thread waits for."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    write_termination_message(message)
    signal_all(_living(), *TOLD_TO_END)
    deadline = time.monotonic() + grace
    while any(not _ignores_sigterm(pid) for pid in _living()) and time.monotonic() < deadline:
        time.sleep(0.2)
    for stream in (1, 2):  # the process that keeps the logs ends when nobody writes any more
        with contextlib.suppress(OSError):
            os.close(stream)
    deadline = time.monotonic() + FIRST_SECONDS
    while _living() and time.monotonic() < deadline:
        time.sleep(0.05)
    signal_all(_living(), signal.SIGKILL)
    os._exit(code)


def signal_all(pids: Iterable[int], *numbers: int) -> None:
    """Send these signals to those that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for number in numbers:
                os.kill(pid, number)


def children() -> list[int]:
    """Return the processes that this one has started and not yet reaped."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def hangs_while_ending(pid: int) -> bool:
    """Whether a process has ended, or was killed, but for threads that wait in the kernel, marked for SIGKILL."""
    with contextlib.suppress(OSError):
        return any(_marked(task) for task in Path(f"/proc/{pid}/task").iterdir())
    return False


def _marked(task: Path) -> bool:
    """Whether SIGKILL is pending for a thread."""
    with contextlib.suppress(OSError):
        lines = (task / "status").read_text().splitlines()
        pending = next(line for line in lines if line.startswith("SigPnd:")).split()[1]
        return bool(int(pending, 16) >> (signal.SIGKILL - 1) & 1)
    return False


def _living() -> list[int]:
    return [pid for pid in children() if _stat(pid)[:1] not in ([], ["Z"]) and not hangs_while_ending(pid)]


def _ignores_sigterm(pid: int) -> bool:
    """Whether a process goes on at SIGTERM, as the one that keeps the logs of the others does."""
    fields = _stat(pid)
    return bool(fields) and bool(int(fields[IGNORED]) >> (signal.SIGTERM - 1) & 1)


def _code(pid: int) -> int:
    """Get the exit code of a process that has not left yet, as a shell shows it; 0 if the kernel does not show it."""
    status = int(_stat(pid)[EXIT_CODE])
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's state, from its letter on; none of one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
