"""A disk that is soon full, which one command and what it starts see alone: neither root nor a real disk is needed."""

import subprocess
from pathlib import Path

import pytest

from tests import patience

ROOT = Path(__file__).parents[2]
MOUNT = 'mount -t tmpfs -o "size=$0" none "$1" && shift && exec "$@"'


def run_on(place: Path, size: str, *command: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run a command while a disk of this size is mounted at a folder; skips the test where the kernel forbids it."""
    done = patience.run(["unshare", "--mount", "--map-root-user", "sh", "-c", MOUNT, size, place, *command], cwd=ROOT)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this kernel lets users mount nothing: {done.stderr}")
    return done
