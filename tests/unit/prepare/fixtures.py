"""An archive and the folder that it is prepared to, for tests of preparation and of what reads prepared folders."""

from pathlib import Path

import pytest

from tests.unit.prepare import make_archives


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound archive in Kaggle's layout, of several shards."""
    return make_archives.write_zip(tmp_path_factory.mktemp("archive") / "archive.zip", make_archives.imagenet())


@pytest.fixture(scope="session")
def prepared(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder prepared from it without interruption. Do not change it."""
    from trainyard.prepare.build import build

    out = tmp_path_factory.mktemp("prepared") / "little"
    build(make_archives.config(archive, out))
    return out
