"""A test that passes alone after it failed is named, and the run is green; one that fails twice is red, as is a 4th."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A test that fails as often as it is told
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    count = Path(f"count-{{number}}")
    times = int(count.read_text()) if count.exists() else 0
    count.write_text(str(times + 1))
    assert times >= {failures}, "not yet"

def test_other(): pass
"""


def run(place: Path, tests: int, failures: int, *options: str) -> tuple[int, str]:
    (place / "test_some.py").write_text(TESTS.format(tests=tests, failures=failures))
    (place / "pytest.ini").write_text("[pytest]\n")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.unstable", *options]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "workers"])
def test_one_that_passes_alone_is_named(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, said = run(tmp_path, 1, 1, *options)
    assert code == 0, said
    assert "test_some.py::test_it[0]  (load " in said
    assert "1 passed, 1 unstable" in said.splitlines()[-1]
    (row,) = json.loads((tmp_path / "build/unstable.json").read_text())
    assert row["test"] == "test_some.py::test_it[0]"
    assert "not yet" in row["message"]
    assert row["load"] >= 0


def test_one_that_fails_twice_is_red(tmp_path: Path) -> None:
    code, said = run(tmp_path, 1, 2)
    assert code == 1
    assert "1 failed, 1 passed" in said.splitlines()[-1]


def test_a_fourth_is_red(tmp_path: Path) -> None:
    assert run(tmp_path, 4, 1)[0] == 1
    (tmp_path / "build").mkdir(exist_ok=True)
    (tmp_path / "build/unstable.json").write_text(json.dumps([{"test": "another part's"}] * 3))
    for count in tmp_path.glob("count-*"):
        count.unlink()
    assert run(tmp_path, 1, 1)[0] == 1, "the other parts of the run had three"
