"""Archives and servers that the tests of preparation share."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fakes import files
from tests.prepare import archives


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound archive in Kaggle's layout, of several shards."""
    return archives.write_zip(tmp_path_factory.mktemp("archive") / "archive.zip", archives.imagenet())


@pytest.fixture(scope="session")
def prepared(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that comes of it, undisturbed. Not to be changed."""
    from trainers.prepare.build import build

    out = tmp_path_factory.mktemp("prepared") / "little"
    build(archives.config(archive, out))
    return out


@pytest.fixture
def server(archive: Path) -> Iterator[files.FileServer]:
    """The archive's folder over HTTP."""
    with files.running(archive.parent) as running:
        yield running


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is room for one: for tests that no disk has a part in."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30
    with tempfile.TemporaryDirectory(dir=memory if roomy else tmp_path) as folder:
        yield Path(folder)
