"""Numbers in environment variables: a wrong one ends every program at its start, named, with exit code 2."""

import subprocess
import sys

import pytest
from conftest import ROOT, environment

from trainyard.core import variables as numbers
from trainyard.core.exits import UserError


@pytest.mark.parametrize("name", numbers.DEFAULTS)
def test_a_number_is_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    default = numbers.read_number(name)
    assert default == numbers.DEFAULTS[name]
    monkeypatch.setenv(name, "")
    assert numbers.read_number(name) == default
    monkeypatch.setenv(name, " 7 ")
    assert numbers.read_number(name) == 7.0


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "1,5", "2m"])
@pytest.mark.parametrize("name", numbers.DEFAULTS)
def test_what_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(UserError, match=rf"environment variable {name} is '{text}': set a"):
        numbers.check_numbers()


def test_restarts_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(numbers.MAX_RESTARTS, "1.5")
    with pytest.raises(UserError, match="a whole number"):
        numbers.check_numbers()


@pytest.mark.parametrize("program", [["trainyard", "mpi", "launch"], ["trainers.ddp"], ["trainyard", "prepare"]])
def test_every_program_looks_at_its_start(program: list[str]) -> None:
    env = environment() | {numbers.STORAGE_SECONDS: "two minutes"}
    done = subprocess.run(
        [sys.executable, "-m", *program], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "error: environment variable TRAINYARD_STORAGE_SECONDS is 'two minutes'" in done.stderr
    assert "Traceback" not in done.stderr
