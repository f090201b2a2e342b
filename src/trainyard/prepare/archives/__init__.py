"""Opens what a source holds: a zip or a tar, plain or packed, known by its first bytes, or a folder."""

from pathlib import Path

from trainyard.core.exits import UserError
from trainyard.prepare.archives.folder import Folder, FolderSource
from trainyard.prepare.archives.kinds import packing, unread
from trainyard.prepare.archives.members import Container
from trainyard.prepare.archives.tar import looks_like_tar, open_tar
from trainyard.prepare.archives.zip import Archive
from trainyard.prepare.settings import SourceSettings
from trainyard.prepare.sources import open_source
from trainyard.prepare.sources.base import Source, Traffic
from trainyard.prepare.sources.retry import Patience


def open_object(config: SourceSettings, traffic: Traffic, patience: Patience | None = None) -> Source:
    """Open the object that the settings name; a folder is one as well."""
    if config.kind == "path" and Path(config.path).is_dir():
        return FolderSource(Path(config.path), traffic)
    return open_source(config, traffic, patience)


def open_container(source: Source, work: Path, traffic: Traffic) -> Container:
    """Look into an object. `work` is where a tar's listing is kept."""
    if isinstance(source, FolderSource):
        return Folder(source)
    head = source.read_range(0, min(source.size, 512))
    if (packed := packing(head)) or looks_like_tar(head):
        return open_tar(source, work, traffic, packed)
    if what := unread(head):
        raise UserError(f"{source.label} ({source.size:,} bytes) {what}")
    return Archive(source)
