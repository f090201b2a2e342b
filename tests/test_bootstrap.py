"""What checkouts share: bytecode that one has compiled serves the others, also where their packages differ."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import checkout
from tests.checkout import ROOT


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


HOLDER = """import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_packages_wait_for_another_update_of_the_lists(tmp_path: Path) -> None:
    """As the system's own daily timer does; apt itself waits for another's install alone."""
    state, programs, waits = tmp_path / "state", tmp_path / "bin", tmp_path / "waits"
    for folder in (state / "lists/partial", tmp_path / "cache/archives/partial", programs):
        folder.mkdir(parents=True)
    places = {
        "State": state,
        "Cache": tmp_path / "cache",
        "Etc::sourcelist": "/dev/null",
        "Etc::sourceparts": "/dev/null",
    }
    own = " ".join(f"-o Dir::{key}={place}" for key, place in places.items())
    for name, script in {
        "dpkg-query": "exit 1",  # all are missing
        "id": "echo 0",
        "apt-get": f'[[ "$*" == *" install "* ]] || exec /usr/bin/apt-get {own} -o APT::Sandbox::User= "$@"',
        "sleep": f'echo >> {waits}; [ "$(wc -l < {waits})" -lt 2 ] || kill "$HOLDER"; exec /bin/sleep 0.1',
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    command = [sys.executable, "-c", HOLDER, str(state / "lists/lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "HOLDER": str(holder.pid)}
        env["TRAINYARD_CACHE"] = str(tmp_path / "own")
        done = subprocess.run([ROOT / "hack/bootstrap", "vm"], env=env, capture_output=True, text=True, check=False)
        holder.kill()
    assert done.returncode == 0, done.stderr
    assert len(waits.read_text()) >= 2
