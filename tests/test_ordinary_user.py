"""README's first command, as an ordinary user with an empty home: nothing it needs asks for root.

Run by root, the test becomes nobody. Only Python packages that uv has fetched before are shared, so that they are not
fetched again; everything else is fetched, unpacked and compiled as on a new machine.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests import patience

pytestmark = [pytest.mark.takes(100), pytest.mark.ranks(2)]
ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534


def share_packages(to: Path) -> None:
    """Give the user a uv cache whose large part, the unpacked packages, is linked from ours."""
    uv = subprocess.run(["scripts/bootstrap", "--uv"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = Path(subprocess.run([uv.strip(), "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())
    large = ours / "archive-v0"
    shutil.copytree(ours, to, symlinks=True, ignore=lambda folder, _: {large.name} if Path(folder) == ours else set())
    if large.exists() and large.stat().st_dev == to.stat().st_dev:
        shutil.copytree(large, to / large.name, symlinks=True, copy_function=os.link)


def own(folder: Path) -> None:
    """Make all files of ours the user's; files that are linked from elsewhere stay their owner's."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() or path.lstat().st_nlink == 1:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@pytest.fixture
def place():
    """A folder that the user reaches, unlike pytest's own, with a checkout and a home."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-user-"))
    try:
        folder.chmod(0o755)
        names = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        tracked = subprocess.run(names, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        for name in tracked:
            if name and (ROOT / name).is_file():
                (folder / "project" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / "project" / name)
        (folder / "home").mkdir()
        share_packages(folder / "uv")
        if os.geteuid() == 0:
            own(folder)
        yield folder
    finally:
        shutil.rmtree(folder)


def test_an_ordinary_user_with_an_empty_home_trains(place):
    leave = ("TRAINYARD_CACHE", "XDG_CACHE_HOME", "VIRTUAL_ENV", "PYTHONPATH")
    # a link of uv's own to a file of another user is refused by the kernel, a symbolic one is not
    own = {"HOME": str(place / "home"), "PATH": "/usr/local/bin:/usr/bin:/bin", "USER": "nobody"}
    env = {name: value for name, value in os.environ.items() if name not in leave} | own
    env |= {"UV_CACHE_DIR": str(place / "uv"), "UV_LINK_MODE": "symlink"}
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
    done = patience.run([*user, "make", "train"], cwd=place / "project", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished: top1 8" in done.stdout
    published = place / "project/build/train/published"
    assert (published / "model.pth").stat().st_uid == (NOBODY if os.geteuid() == 0 else os.geteuid())
