"""What waits and bounds of tests rest on: a machine's pace as a test feels it, and ports that nobody else gets."""

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import patience, ports


@pytest.fixture
def crowd() -> Iterator[int]:
    """Processes that never stop working on the one processor that this one may use, too; their number."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    command = [sys.executable, "-c", "print('works', flush=True)\nwhile True: pass"]
    busy = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for one in busy:
            assert one.stdout is not None
            assert one.stdout.readline()
        yield len(busy)
    finally:
        for one in busy:
            one.kill()
            one.communicate()
        os.sched_setaffinity(0, before)


def test_a_machine_whose_processor_is_shared_is_slower(crowd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = []
    for _ in range(patience.PIECES):  # one alone may have been cold, or robbed by the machine's own host
        begun = time.thread_time()
        patience._interpret()
        pieces.append(time.thread_time() - begun)
    monkeypatch.setattr(patience, "REFERENCE", statistics.median(pieces))  # whatever this machine is
    assert patience.slowness() > (1 + crowd) / 2


def test_the_machine_that_bounds_were_written_for_and_a_faster_one_are_not_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "REFERENCE", 1e9)
    assert patience.slowness() == 1.0


def test_progress_is_asked_of_long_waits_alone_and_one_without_it_ends() -> None:
    asked: list[float] = []
    progress = lambda: asked.append(time.monotonic())  # noqa: E731
    assert patience.wait("it is there", lambda: 1, progress) == 1
    assert not asked
    with pytest.raises(AssertionError, match="no progress for 0 s: it never comes"):
        patience.wait("it never comes", lambda: None, progress, idle=0.3)
    assert 0.3 < asked[-1] - asked[0] < patience.IDLE


def test_ports_are_free_and_stay_this_processs_own() -> None:
    first = ports.free(3)
    with socket.create_server(("", first + 1)):
        others = {ports.free() for _ in range(3)}
    assert not others & set(range(first, first + 3))
    command = [sys.executable, "-c", "from tests import ports; print(ports.free(3))"]
    done = patience.run(command, cwd=Path(__file__).parents[1])
    assert not {int(done.stdout) + more for more in range(3)} & ({first, first + 1, first + 2} | others), done.stderr
