"""A tar as a container: read once as a stream to list its members, then by ranges like any other archive.

A tar has no directory and no checksums of its members. The first pass finds both, over several requests at a time, and
keeps them in a listing in the work folder, so that a restart does not repeat it. A packed tar (gzip, bzip2, xz) can be
read from the front only: the first pass, one thread, unpacks it beside the listing, and the ranges are those of the
unpacked file, which takes its whole size on the volume until the preparation is complete. A first pass that was killed
starts from the beginning. The listing ends in a checksum of itself: nothing else would tell that a name in it, and so a
label, has changed between two starts.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.core.files import atomic
from trainyard.core.storage import storage
from trainyard.prepare.archives.members import Container, Member, read_whole
from trainyard.prepare.archives.stream import Reader, decompress, stream
from trainyard.prepare.archives.tar_scan import BLOCK, scan, sound
from trainyard.prepare.lock import exclusive
from trainyard.prepare.progress import Pulse, say
from trainyard.prepare.sources.base import Source, Traffic
from trainyard.prepare.sources.path import PathSource

# What files of the first pass are called in the work folder
LISTING, UNPACKED = "listing-", "unpacked-"
_WAIT = 86400.0
# Part of a listing's name: an earlier version's may hold names that lost bytes, lacks folders, ends where the first of
# several tars ends that were joined, or has no checksum
_RULES = "names 4"
_SUM = b"sha256 "  # how the listing's last line begins


class Tar(Container):
    """A tar whose listing is there."""

    def __init__(self, source: Source, listing: Path, unpacked: Path | None = None) -> None:
        """`unpacked` is the file that `source` reads, where that is a copy."""
        self.source = source
        self.members_end = source.size
        # Of the listing, known after a whole pass over members()
        self.fingerprint = ""
        self.folders: list[str] = []
        self._listing = listing
        self._unpacked = unpacked

    def members(self) -> Iterator[Member]:
        """Go through the listing."""
        digest = hashlib.sha256()
        folders = []
        try:
            for line in _read_lines(self._listing):
                member = Member(*json.loads(line))
                if member.name.endswith("/"):
                    folders.append(member.name)
                    continue
                digest.update(line)
                yield member
        except (ValueError, TypeError):
            self._listing.unlink(missing_ok=True)
            raise ExitError(
                f"{self._listing} has changed since it was made; it was removed, run the same command again",
                Exit.FAILED,
            ) from None
        self.fingerprint, self.folders = digest.hexdigest(), folders

    def read(self, member: Member) -> bytes:
        """Read one small member whole and checked."""
        return read_whole(self, member, member.stored)

    def drop_copy(self) -> bool:
        """Remove the unpacked tar, if there is one, with the listing that was made with it."""
        if self._unpacked is None:
            return False
        for path in (self._listing, self._unpacked):
            path.unlink(missing_ok=True)
        return True


def open_tar(source: Source, work: Path, traffic: Traffic, packing: str = "") -> Tar:
    """Do the first pass, or use the listing of an earlier one; of several processes one does it. Raises UserError."""
    key = hashlib.sha256(f"{_RULES} {source.label} {source.identity}".encode()).hexdigest()[:16]
    listing, unpacked = work / f"{LISTING}{key}.jsonl", work / f"{UNPACKED}{key}.tar"
    work.mkdir(parents=True, exist_ok=True)
    with exclusive(work / "lock-listing", _WAIT, say):
        if not _is_whole(listing) or (packing and not unpacked.exists()):
            # Left by a killed first pass or another archive; it may be as large as this one
            remove_leftovers(work)
            say(f"{source.label} is a tar, which has no directory: reading it once to make one")
            if packing and (free := shutil.disk_usage(work).free) < source.size:
                raise UserError(
                    f"{work.parent} has {free / 1e9:,.2f} GB free, and {source.label} takes at least "
                    f"{source.size / 1e9:,.2f} GB when it is unpacked there: free space or enlarge the claim, or "
                    "give a plain tar or a zip, which are not unpacked"
                )
            _first_pass(source, listing, unpacked if packing else None, packing, traffic)
    if not packing:
        return Tar(source, listing)
    local = PathSource(unpacked, traffic)
    local.label = source.label
    return Tar(local, listing, unpacked)


def _is_whole(listing: Path) -> bool:
    """Whether there is a listing that has its checksum; raises OSError and StorageError."""
    try:
        for _ in _read_lines(listing):
            pass
    except (FileNotFoundError, ValueError):
        return False
    return True


def _read_lines(listing: Path) -> Iterator[bytes]:
    """Go through the lines of a listing; raises ValueError at its end where that is not their checksum, and OSError."""
    digest = hashlib.sha256()
    with storage.open_file(listing) as file:
        for line in file:
            if line.startswith(_SUM) and line == _sum_line(digest) and not file.read(1):
                return
            yield line
            digest.update(line)
    raise ValueError("it does not have its checksum")


def _sum_line(digest: "hashlib._Hash") -> bytes:
    """Return the last line of a listing: the SHA-256 of all before it."""
    return _SUM + digest.hexdigest().encode() + b"\n"


def remove_leftovers(work: Path) -> None:
    """Remove the files of first passes, when none will be read any more."""
    for name in (LISTING, UNPACKED):
        for path in (*work.glob(f"{name}*"), *work.glob(f".{name}*")):
            path.unlink(missing_ok=True)


def _first_pass(source: Source, listing: Path, unpacked: Path | None, packing: str, traffic: Traffic) -> None:
    """Write the listing, and the unpacked tar if it is asked for; the listing appears last."""
    before, pulse = traffic.bytes, Pulse()

    def words(seconds: float, files: int) -> str:
        done = traffic.bytes - before
        part, speed = min(done / source.size, 1), done / seconds
        left = max(source.size - done, 0) / max(speed, 1.0)
        return (
            f"listing {source.label}: {part:.0%} · {files:,} files · {speed / 1e6:.1f} MB/s · about {left:.0f} s left "
            f"· {traffic.retries} retries"
        )

    with ExitStack() as stack:  # which ends in reverse order
        list_file = stack.enter_context(atomic(listing))
        copy = stack.enter_context(atomic(unpacked)) if unpacked else None
        chunks = stack.enter_context(stream(source))
        reader = Reader(decompress(chunks, source, packing) if packing else chunks, copy)
        digest = hashlib.sha256()
        for number, member in enumerate(scan(reader, source.label), 1):
            line = json.dumps(member).encode() + b"\n"
            list_file.write(line)
            digest.update(line)
            pulse.beat(partial(words, files=number))
        list_file.write(_sum_line(digest))
        if unpacked:
            reader.exhaust()  # to the end, where the packing keeps its own checksum


def looks_like_tar(head: memoryview) -> bool:
    """Tell whether an object begins with a tar's header, by the checksum in it."""
    return len(head) >= BLOCK and sound(bytes(head[:BLOCK]))
