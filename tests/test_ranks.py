"""The ranks of all tests together are bounded, also across processes, and slots end with their processes."""

import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ranks

ROOT = Path(__file__).resolve().parents[1]
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


def test_a_request_for_more_than_is_left_waits_until_it_is_free():
    with holder(ranks.capacity() - 1) as first:
        assert first.stdout.readline() == "holds\n"
        with ranks.slots(1):
            pass
        with holder(2) as second:
            time.sleep(1)
            assert not select.select([second.stdout], [], [], 0)[0], "it waits"
            first.kill()
            assert second.stdout.readline() == "holds\n"
            second.kill()


def test_more_than_there_are_is_all_of_them():
    with ranks.slots(10 * ranks.capacity()), holder(1) as other:
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(2)
        other.kill()
