"""README's first command and the unit tests, as an ordinary user with an empty home: nothing they need asks for root.

Run by root, the tests become nobody. Of the unit tests those run that meet the user's rights. Only Python packages that
uv has fetched before are shared, and bytecode; everything else is fetched, unpacked and compiled as on a new machine.
The demo trains for one epoch of its five; what the whole of it learns, tests/e2e/test_release.py sees.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests import checkout, documents, patience

pytestmark = [pytest.mark.root, pytest.mark.takes(60), pytest.mark.ranks(2)]
ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534
# What the user may write, mount and bind, and what is told to one who is not root
OF_THE_USER = [
    "tests/test_machine.py",
    "tests/test_ranks.py",
    "tests/unit/prepare/test_sample.py::test_the_archive_server_answers_as_servers_do",
    "tests/unit/pod/test_preflight.py",
    "tests/unit/run/test_directory.py::test_directory_that_cannot_be_written",
    "tests/unit/run/test_directory.py::test_leases_that_may_not_be_read_are_said",
]


def shorten(recipe: Path) -> None:
    """Let the recipe train for one epoch."""
    whole = recipe.read_text()
    assert "\nepochs: 5\n" in whole
    recipe.write_text(whole.replace("\nepochs: 5\n", "\nepochs: 1\n"))


def share_packages(to: Path) -> None:
    """Give the user a uv cache whose large part, the unpacked packages, is linked from ours."""
    uv = subprocess.run(["hack/bootstrap", "--uv"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = Path(subprocess.run([uv.strip(), "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())
    large = ours / "archive-v0"
    # What another uv is writing at this moment vanishes
    shutil.copytree(ours, to, symlinks=True, ignore=shutil.ignore_patterns(large.name, ".tmp*"))
    if large.exists() and large.stat().st_dev == to.stat().st_dev and large.stat().st_uid == os.geteuid():
        shutil.copytree(large, to / large.name, symlinks=True, copy_function=os.link)


def share_bytecode(folder: Path) -> None:
    """Link the bytecode that is here to where the user's Python looks for it, by its source's path."""
    ours = [*ROOT.glob(".venv/lib/python3*"), *(ROOT / name for name in ("hack", "src", "tests", "trainers"))]
    for below in [*ours, *Path("/usr/lib").glob("python3*")]:
        if below.stat().st_dev != folder.stat().st_dev or below.stat().st_uid != os.geteuid():
            continue
        for cache in below.rglob("__pycache__"):
            source = cache.parent
            if below in ours:
                source = folder / "project" / source.relative_to(ROOT)
            to = folder / "bytecode" / source.relative_to("/")
            to.mkdir(parents=True, exist_ok=True)
            for path in cache.glob("*.pyc"):
                os.link(path, to / path.name)


def own(folder: Path) -> None:
    """Make all files of ours the user's; files that are linked from elsewhere stay their owner's."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() or path.lstat().st_nlink == 1:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@pytest.fixture(scope="module")
def place():
    """A folder that the user reaches, unlike pytest's own, with a checkout and a home."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-user-"))
    try:
        folder.chmod(0o755)
        shorten(checkout.copy(folder / "project") / "src/trainyard/recipes/demo.yaml")
        (folder / "home").mkdir()
        share_packages(folder / "uv")
        share_bytecode(folder)
        if os.geteuid() == 0:
            own(folder)
        yield folder
    finally:
        shutil.rmtree(folder)


def as_user(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout, to its end."""
    # an ordinary user has none of these: Python keeps bytecode, too
    leave = ("TRAINYARD_CACHE", "XDG_CACHE_HOME", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    # a link of uv's own to a file of another user is refused by the kernel, a symbolic one is not
    own = {"HOME": str(place / "home"), "PATH": "/usr/local/bin:/usr/bin:/bin", "USER": "nobody"}
    env = {name: value for name, value in os.environ.items() if name not in leave and not name.startswith("PYTEST")}
    env |= own | {"UV_CACHE_DIR": str(place / "uv"), "UV_LINK_MODE": "symlink"}
    env["PYTHONPYCACHEPREFIX"] = str(place / "bytecode")
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
    return patience.run([*user, *command], cwd=place / "project", env=env)


@pytest.fixture(scope="module")
def trained(place: Path) -> subprocess.CompletedProcess[str]:
    """README's first command."""
    return as_user(place, "bash", "-euc", documents.text("README.md", "make train"))


def test_an_ordinary_user_with_an_empty_home_trains(place, trained):
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert not documents.lacking(documents.shown("first-model.md", "make train\n"), trained.stdout)
    found = re.search(r"finished: top1 ([\d.]+) %", trained.stdout)
    assert found, trained.stdout
    assert float(found[1]) > 60  # of ten classes
    published = place / "project/build/train/published"
    assert (published / "model.pth").stat().st_uid == (NOBODY if os.geteuid() == 0 else os.geteuid())


def test_an_ordinary_user_runs_unit_tests(place, trained):
    assert trained.returncode == 0, trained.stdout + trained.stderr
    command = [".venv/bin/pytest", "-p", "no:cacheprovider", "--basetemp", str(place / "home/tests"), *OF_THE_USER]
    done = as_user(place, *command, "-m", "not e2e and not images and not root and not soak")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in {one.partition("::")[0] for one in OF_THE_USER}:
        assert re.search(rf"^{name} .*[.]", done.stdout, re.M), done.stdout
