"""The stopwatch of a newcomer's first hour: what it calls wrong, its table, and all of it before a release."""

import subprocess
import sys
from pathlib import Path

import pytest

from hack.first_hour.__main__ import Expected, Step, table, type_in
from tests import documents
from tests.documents import ROOT


def test_a_step_that_ends_otherwise_or_is_silent_is_wrong(tmp_path: Path) -> None:
    assert not type_in("README.md", "", "echo .webp; exit 2", tmp_path, Expected(2, (".webp",))).wrong
    assert "it ended with 3, not 0" in type_in("README.md", "", "exit 3", tmp_path).wrong
    silent = type_in("README.md", "", "echo .webp >&2; exit 2", tmp_path, Expected(2, (".webp", ".heic")))
    assert "it says nothing of .heic" in silent.wrong


def test_what_a_page_shows_must_be_printed(tmp_path: Path) -> None:
    (block, *_) = documents.texts("first-model.md", "tests/test_first_model.py")
    shown = documents.shown("first-model.md", block)
    assert shown
    assert documents.lacking(shown, "nothing of that") == [line for line in shown if line.strip() != "..."]
    assert not documents.lacking(
        ["read 4 MB", "...", "is beech (93%)"], "read 17.2 MB\nmore\nis T-shirt (4%)", ("beech",)
    )


def test_the_table_has_the_sums() -> None:
    said = table([Step("a.md", "one", 1.4, 0.6, ""), Step("b.md", "two", 2.0, 3.0, "it failed")])
    assert "| a.md | one | 1 s | 1 s | as it says |" in said
    assert "| b.md | two | 2 s | 3 s | it failed |" in said
    assert "|  | all | 3 s | 4 s |  |" in said


@pytest.mark.soak
@pytest.mark.ranks(2)
def test_the_whole_hour(tmp_path: Path) -> None:
    """Soak: its parts are tests of their own."""
    command = [sys.executable, "-m", "hack.first_hour", str(tmp_path / "hour")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
