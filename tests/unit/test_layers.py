"""The layers of src/trainyard hold: the linter's contracts in pyproject.toml are kept, and fail where one is broken."""

import ast
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


# What describes or records a whole run, or chooses by many sections; all else takes the sections that it reads
TAKE_ALL = {
    "models/described.py: describe", "models/weights.py: followed", "parallel/__init__.py: connect",
    "run/recorder.py: __init__", "telemetry/sinks.py: __init__",
}  # fmt: skip


def takes_all_settings(function: ast.FunctionDef) -> bool:
    """Whether a parameter is `trainyard.config.Config`."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return any("Config" in ast.unparse(one.annotation).split(" | ") for one in arguments if one.annotation)


def test_packages_below_training_take_sections_of_the_settings() -> None:
    found = set()
    for path in sorted((ROOT / "src/trainyard").rglob("*.py")):
        tree, name = ast.parse(path.read_text()), path.relative_to(ROOT / "src/trainyard")
        imported = [
            one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.module == "trainyard.config"
        ]
        if name.parts[0] in ("config", "training") or not any(
            a.name == "Config" for one in imported for a in one.names
        ):
            continue
        functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
        found |= {f"{name}: {one.name}" for one in functions if takes_all_settings(one)}
    assert found == TAKE_ALL
