"""A copy of this checkout, for tests that must not write into it."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def copy(to: Path) -> Path:
    """Copy the files that git tracks, or would track, to a folder."""
    names = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(names, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in tracked:
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to
