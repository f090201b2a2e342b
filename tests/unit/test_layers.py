"""The layers of src/trainyard hold: the linter's contracts in pyproject.toml are kept, and fail where one is broken."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

LINTER = Path(sys.executable).with_name("lint-imports")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """The linter's verdict on the package in a folder."""
    env = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(
        [LINTER, "--no-cache", "--no-logo"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_run_downwards_and_in_no_circle() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "imported", "broken"),
    [
        ("config/load.py", "trainyard.training.loop", "imports run downwards"),
        ("data/loader.py", "trainyard.telemetry.clock", "imports run downwards"),
        ("shards/manifest.py", "trainyard.shards.reader", "no circles, at any depth"),
        ("prepare/sources/base.py", "trainyard.prepare.archives.zip", "no circles, at any depth"),
    ],
)
def test_an_import_that_runs_upwards_or_in_a_circle_is_an_error(
    copied: Path, file: str, imported: str, broken: str
) -> None:
    path = copied / "src/trainyard" / file
    path.write_text(f"{path.read_text()}\nimport {imported}\n")
    done = lint(copied)
    assert done.returncode == 1
    assert f"{broken} BROKEN" in done.stdout


def test_a_new_package_must_be_given_a_layer(copied: Path) -> None:
    (copied / "src/trainyard" / "attic").mkdir()
    (copied / "src/trainyard" / "attic" / "__init__.py").write_text("")
    done = lint(copied)
    assert done.returncode == 1
    assert "trainyard.attic" in done.stdout
