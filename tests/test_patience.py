"""What waits of tests rest on: progress, and ports that nobody else gets."""

import socket
import sys
import time
from pathlib import Path

import pytest

from tests import patience, ports


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
