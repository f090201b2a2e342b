"""The benchmark of a run's servers with many clients: all are answered, and what grows too fast is named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cpu.clients import PARTS, Figure, growth, table
from tests import patience

ROOT = Path(__file__).resolve().parents[1]
# a client that is starved has longer for its answer
PROGRAM = f"""
from benchmarks.cpu import clients
clients.LOOK_SECONDS = clients.presence.PROBE_SECONDS = {patience.IDLE}
clients.main()
"""


def measure(limit: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark in a shell with a limit of open files."""
    command = ["bash", "-c", f'{limit}; exec "$@"', "bash", sys.executable, "-c", PROGRAM]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_more_clients_than_files_may_be_open_are_refused() -> None:
    done = measure("ulimit -n 1000", "--clients", "4096")
    assert done.returncode == 2
    assert "4096 clients need 8392 open files, and 1000 are allowed: raise ulimit -Hn, or name fewer" in done.stderr


def test_each_part_answers_all_of_its_clients(tmp_path: Path) -> None:
    out = tmp_path / "clients.json"
    done = measure(
        "ulimit -Sn 24", str(out), "--clients", "3", "9"
    )  # most shells allow 1024, too few for 4,096 clients
    assert done.returncode == 0, done.stderr
    figures = [Figure(**one) for one in json.loads(out.read_text())]
    assert len({one.part for one in figures}) == len(PARTS)
    assert [one.value for one in figures if "not answer" in one.what] == [0] * 4
    questions = {one.clients: one.value for one in figures if one.what.startswith("questions")}
    assert questions == {3: 6, 9: 72}
    assert "Grows faster than linearly" in done.stdout


def test_growth_is_the_power_of_the_number_of_clients() -> None:
    square = [Figure("part", "all ask all", count, count**2 / 100, "s") for count in (8, 64, 512)]
    assert growth(square) == pytest.approx(2)
    assert "part, all ask all (power 2.00)" in table(square, [8, 64, 512])
    linear = [Figure("part", "each asks one", count, float(count), "s") for count in (8, 64)]
    assert growth(linear) == pytest.approx(1)
    assert table(linear, [8, 64]).endswith("nothing.")
    assert growth([Figure("part", "nothing much", count, 1e-4, "s") for count in (8, 64)]) is None
