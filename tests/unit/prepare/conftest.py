"""Archives and servers that the tests of preparation share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import files
from tests.unit.prepare.fixtures import archive, prepared

__all__ = ["archive", "prepared"]


@pytest.fixture
def server(archive: Path) -> Iterator[files.FileServer]:
    """The archive's folder over HTTP."""
    with files.running(archive.parent) as running:
        yield running


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if there is space: for tests that need no disk."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30
    with tempfile.TemporaryDirectory(dir=memory if roomy else tmp_path) as folder:
        yield Path(folder)
