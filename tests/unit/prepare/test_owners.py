"""A folder that this user may not write, as on NFS with root squash: the message says whose it is, and the remedy."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.prepare.make_archives import config, imagenet, write_zip
from trainyard import config as training
from trainyard.config import fingerprint
from trainyard.core.exits import UserError
from trainyard.inference import command
from trainyard.pod import preflight
from trainyard.prepare.build import build
from trainyard.run import starts

NOBODY = pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of another user with mode 0755, which any user reaches; for an ordinary user, its own without `w`."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755 if os.getuid() == 0 else 0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_another(action: Callable[[], object]) -> str:
    """What an action fails with in a process of a user who does not own the folder."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            action()
        except UserError as error:
            said = str(error)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def expected(place: Path) -> list[str]:
    me = NOBODY if os.getuid() == 0 else os.getuid()
    mode = "0755" if os.getuid() == 0 else "0555"
    return [
        f"{place} belongs to uid {os.getuid()} and gid {os.getgid()} (mode {mode}), and this process is uid {me} and ",
        "run as its owner (on a cluster global.storage.uid and gid)",
    ]


def test_a_preparation_says_whose_the_folder_is(place: Path) -> None:
    source = write_zip(place.with_name(f"{place.name}.zip"), imagenet(9, 6))
    try:
        said = as_another(lambda: build(config(source, place / "little")))
    finally:
        source.unlink()
    assert said.startswith(f"{place}/little cannot be written: Permission denied; ")
    assert all(words in said for words in expected(place)), said


def test_a_run_says_whose_the_folder_is(place: Path) -> None:
    settings = training.build({"recipe": "demo"}, {"run": {"dir": str(place / "runs" / "first")}})
    said = as_another(lambda: starts.count(settings.run, fingerprint(settings)))
    assert said.startswith(f"run.dir = '{place}/runs/first': cannot be written (Permission denied)")
    assert all(words in said for words in expected(place)), said


def test_the_preflight_says_whose_the_folder_is(place: Path) -> None:
    said = as_another(lambda: preflight.check_results(place / "runs" / "first", 1))
    assert all(words in said for words in expected(place)), said


def test_results_of_a_model_say_whose_the_folder_is(place: Path) -> None:
    said = as_another(lambda: command.ready_to_write(place / "out"))
    assert said.startswith(f"--out {place}/out cannot be written: Permission denied; ")
    assert all(words in said for words in expected(place)), said
