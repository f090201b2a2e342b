"""hack/bootstrap waits for the system's own update of the packages' lists."""

import os
import subprocess
import sys
from pathlib import Path

from tests.checkout import ROOT

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
