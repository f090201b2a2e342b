"""Wait for work at the machine's own speed: as long as it makes progress, and not forever without."""

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")
IDLE = 180.0  # seconds without any progress after which work hangs
REFERENCE = 0.002  # processor seconds that one core of a server of 2024 takes for `_interpret`
PIECES = 40  # of the interpreter's work that are timed: as many as the scheduler's turns on a busy machine are seen in
TICKS = os.sysconf("SC_CLK_TCK")


def wait(
    what: str | Callable[[], str],
    look: Callable[[], Found],
    progress: Callable[[], object],
    idle: float = IDLE,
    pause: float = 0.2,
) -> Found:
    """Return what `look` finds once it finds something.

    Fail with `what` when `progress` has returned one and the same value for `idle` seconds; it is asked seldom, and not
    before a sixth of them: most waits are shorter, and what is asked may be a list of all that a cluster has. Looking
    may cost more than what is looked for, so the pause between two looks is as long as a look; it grows to `pause`
    seconds.
    """
    state, changed, rest = object(), time.monotonic(), 0.005
    asked = changed
    while True:
        begun = time.monotonic()
        if found := look():
            return found
        now = time.monotonic()
        if now - asked > idle / 6:
            asked, (before, state) = now, (state, progress())
            changed = now if state != before else changed
            assert now - changed < idle, f"no progress for {idle:.0f} s: {what() if callable(what) else what}"
        rest = min(2 * rest, pause)
        time.sleep(max(rest, now - begun))


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its descendants, also of those that they have waited for."""
    total = 0
    for one in family(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def queued_seconds(pid: int) -> float:
    """Return for how long the threads of a process and of its descendants have waited for a processor (proc(5)).

    Those that have ended are not counted, so it may become less.
    """
    total = 0
    for one in family(pid):
        with contextlib.suppress(OSError):  # it ends while its threads are listed
            for thread in Path(f"/proc/{one}/task").iterdir():
                with contextlib.suppress(OSError):
                    total += int((thread / "schedstat").read_text().split()[1])
    return total / 1e9


def effort(pid: int) -> tuple[float, float]:
    """Return the seconds for which a process and its descendants have had a processor, and have waited for one."""
    return processor_seconds(pid), queued_seconds(pid)


def has_tried(before: tuple[float, float], now: tuple[float, float], idle: float = IDLE) -> bool:
    """Whether a process that may use less than a hundredth of a processor has worked, or was not let."""
    return now[0] - before[0] > idle / 100 or abs(now[1] - before[1]) > idle / 4


def still() -> object:
    """Report no progress except the process's own."""
    return None


def communicate(
    process: "subprocess.Popen[str]",
    stdin: str | None = None,
    idle: float = IDLE,
    beside: Callable[[], object] = still,
) -> tuple[str, str]:
    """Do what `Popen.communicate` does, until the process ends; kill it and fail when it hangs.

    It hangs when for `idle` seconds it and its descendants use less than a hundredth of a processor, though they get
    one when they want it, and `beside`, which tells of what it waits for, returns one and the same value.
    """
    tried, other, since = (0.0, 0.0), object(), time.monotonic()
    while True:
        try:
            return process.communicate(stdin, timeout=idle / 6)
        except subprocess.TimeoutExpired as late:
            stdin = None  # it has been taken
            now, (before, other) = effort(process.pid), (other, beside())
            if has_tried(tried, now, idle) or other != before:
                tried, since = now, time.monotonic()
            if time.monotonic() - since > idle:
                process.kill()
                said = "\n".join(filter(None, process.communicate()))
                raise AssertionError(f"{process.args} hangs; it said:\n{said}") from late


def run(
    command: list[str], stdin: str | None = None, beside: Callable[[], object] = still, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Do what `subprocess.run` does with text and all output captured, until the command ends or hangs."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    if stdin is not None:
        pipes["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, text=True, **pipes) as process:
        out, err = communicate(process, stdin, beside=beside)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def slowness() -> float:
    """Return how many times slower this machine is just now than the one that bounds in seconds were written for.

    For what is timed by the trainers themselves, such as a heartbeat that is late. Measured by what tests mostly do,
    the interpreter's work: how long a piece of it has a processor, by the median of several, and how much longer all
    of them take, since others have it meanwhile. At least 1.
    """
    pieces, wall, used = [], time.monotonic(), time.thread_time()
    for _ in range(PIECES):
        begun = time.thread_time()
        _interpret()
        pieces.append(time.thread_time() - begun)
    shared = (time.monotonic() - wall) / (time.thread_time() - used)
    return max(1.0, statistics.median(pieces) / REFERENCE * max(1.0, shared))


def _interpret() -> None:
    """Work that is always the same: calls, numbers, strings and a dictionary."""
    kept: dict[int, str] = {}
    for number in range(20_000):
        kept[number % 251] = str(number * number)
