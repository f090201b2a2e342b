"""What checkouts share: bytecode that one has compiled serves the others, also where their packages differ."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import checkout


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Return the packages of two checkouts; the first has one more, as after `hack/bootstrap horovod`."""
    found = []
    for name, packages in (("first", ("torch", "added")), ("second", ("torch",))):
        tree = checkout.copy(tmp_path / name)
        python = tree / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        site = tree / ".venv/lib/python3.11/site-packages"
        for package in packages:
            (site / package).mkdir(parents=True)
            source = site / package / "__init__.py"
            source.write_text(f'"""{package}"""\n')
            os.utime(source, (1e9, 1e9))
        found.append(site)
        env = os.environ | {"TRAINYARD_CACHE": str(tmp_path / "cache")}
        subprocess.run([tree / "hack/bootstrap", "bytecode"], env=env, check=True)
    return found[0], found[1]


def test_bytecode_of_another_checkouts_packages_is_left_out(trees: tuple[Path, Path]) -> None:
    first, second = trees
    compiled = {path.relative_to(first) for path in first.rglob("*.pyc")}
    assert {path.parts[0] for path in compiled} == {"torch", "added"}
    assert {path.relative_to(second) for path in second.rglob("*.pyc")} == {
        path for path in compiled if path.parts[0] == "torch"
    }
    # an empty folder would be imported as a package without content: psutil's, by mypy
    assert not (second / "added").exists()
