"""The folder that `make gpu-wheels` fills: what the lock file names for CPython 3.12, small, importable."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import wheels
from benchmarks.gpu.machine import PACKAGES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Filled for real, from the package cache or the network."""
    out = tmp_path_factory.mktemp("carried") / "wheels"
    command = [sys.executable, "-m", "benchmarks.gpu.wheels", str(out)]
    said = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    assert str(out) in said
    return out


def test_versions_are_the_lock_files(folder: Path) -> None:
    locked = dict(re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"', (ROOT / "uv.lock").read_text()))
    found = [info.name.removesuffix(".dist-info").split("-") for info in folder.glob("*/*.dist-info")]
    assert {"pydantic", "pydantic_core", "typing_inspection"} <= {name for name, _ in found}
    for name, version in found:
        assert locked[name.replace("_", "-")] == version


def test_it_is_small_and_for_python_3_12(folder: Path) -> None:
    assert wheels.bytes_in(folder) <= wheels.MOST == 60_000_000
    compiled = [path.name for path in folder.rglob("*.so") if path.parent.name != "native"]
    assert any("cpython-312-x86_64-linux-gnu" in name for name in compiled)
    assert not any(f"cpython-3{minor}-" in name for name in compiled for minor in (10, 11, 13))
    assert {"torch", "torchvision", "numpy", "kaggle", "wandb"}.isdisjoint(path.name for path in folder.iterdir())
    assert set(PACKAGES) >= {"torch", "torchvision"}


def test_each_package_is_whole_in_its_own_folder(folder: Path) -> None:
    for own in folder.iterdir():
        if own.name == "native":
            continue
        record = next(own.glob("*.dist-info")) / "RECORD"
        names = [line.split(",")[0] for line in record.read_text().splitlines()]
        assert all((own / name).exists() for name in names if not name.startswith(("..", "bin/", '"')))


def test_too_much_is_refused_and_the_old_folder_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "wheels"
    out.mkdir()
    (out / "old").touch()
    monkeypatch.setattr(wheels, "MOST", 1_000_000)
    monkeypatch.setattr(sys, "argv", ["wheels", str(out)])
    assert wheels.main() == 1
    assert "more than 1 MB" in capsys.readouterr().err
    assert (out / "old").exists()
