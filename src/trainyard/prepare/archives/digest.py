"""Compares an archive with the SHA-256 that the settings name, by reading all of it once."""

import hashlib
from functools import partial
from pathlib import Path

from trainyard.core.exits import UserError
from trainyard.core.storage import storage
from trainyard.prepare.archives.folder import FolderSource
from trainyard.prepare.archives.stream import stream
from trainyard.prepare.lock import exclusive
from trainyard.prepare.progress import Pulse, say
from trainyard.prepare.sources.base import Source

_WAIT = 86400.0


def check_sha256(source: Source, wanted: str, work: Path) -> None:
    """Read the archive from start to end and compare; raises UserError.

    What follows reads ranges of the same object, whose size and identity are compared at each answer. A record in the
    work folder spares a restart, and other parts of the work, another reading of the same object.
    """
    if isinstance(source, FolderSource):
        raise UserError(
            f"source.sha256 is that of an archive, and {source.label} is a folder: take it out, or pack the folder"
        )
    record = work / "source.sha256"
    known = f"{wanted} {hashlib.sha256(f'{source.label} {source.identity}'.encode()).hexdigest()}\n"
    with exclusive(work / "lock-sha256", _WAIT, say):
        if record.is_file() and record.read_bytes() == known.encode():
            return
        say(f"reading all of {source.label} once, to compare its SHA-256")
        found = _sha256(source)
        if found != wanted:
            raise UserError(
                f"{source.label} has the SHA-256 {found}, and source.sha256 is {wanted}: it is another archive or a "
                "damaged one; get the right one, or correct source.sha256 if this one is"
            )
        storage.write_file(record, known.encode())


def _sha256(source: Source) -> str:
    digest, done, pulse = hashlib.sha256(), 0, Pulse()

    def words(seconds: float, done: int) -> str:
        speed = done / seconds
        left = (source.size - done) / max(speed, 1.0)
        return f"SHA-256 of {source.label}: {done / source.size:.0%} · {speed / 1e6:.1f} MB/s · about {left:.0f} s left"

    with stream(source) as pieces:
        for piece in pieces:
            digest.update(piece)
            done += len(piece)
            pulse.beat(partial(words, done=done))
    return digest.hexdigest()
