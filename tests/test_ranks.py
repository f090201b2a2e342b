"""The ranks of all tests together are bounded, also across processes, and slots end with their processes."""

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience, ranks

ROOT = Path(__file__).resolve().parents[1]
SLEEP = {"x86_64": "230 ", "aarch64": "115 "}  # clock_nanosleep, of Linux's unistd.h
HOLD = """
import sys, time
from tests import ranks
with ranks.slots(int(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """Separate slots for this test, two for each of two cores."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(ranks, "FOLDER", tmp_path / ranks.FOLDER.name)


def holder(number: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD, str(number)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def waits(process: "subprocess.Popen[str]") -> bool:
    """Whether a process is the first in the queue, and pauses since it has not found enough slots."""
    with contextlib.suppress(OSError):  # a file was closed meanwhile
        files = [path.readlink() for path in Path(f"/proc/{process.pid}/fd").iterdir()]
        sleeps = Path(f"/proc/{process.pid}/syscall").read_text().startswith(SLEEP[os.uname().machine])
        return sleeps and ranks.FOLDER / "queue" in files
    return False


def test_a_request_for_more_than_is_left_waits_until_it_is_free():
    with holder(ranks.capacity() - 1) as first:
        assert first.stdout.readline() == "holds\n"
        with ranks.slots(1):
            pass
        with holder(2) as second:
            patience.wait("it does not wait", lambda: waits(second), patience.still)
            assert not select.select([second.stdout], [], [], 0)[0]
            first.kill()
            assert second.stdout.readline() == "holds\n"
            second.kill()


def test_more_than_there_are_is_all_of_them():
    with ranks.slots(10 * ranks.capacity()), holder(1) as other:
        patience.wait("it does not wait", lambda: waits(other), patience.still)
        assert not select.select([other.stdout], [], [], 0)[0]
        other.kill()
