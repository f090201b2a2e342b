"""Writes one shard: fetches its samples, checks each, writes it at its planned position, and publishes tar and index.

Files are made under temporary names in the work folder, synced, and renamed; then a record of the finished shard is
written the same way. A shard without a record is written from scratch.

Where storage fails, a write is repeated through a reopened file (storage.py), and the shard is read back and compared
with its checksums before it counts. Any other failure (a sync, a rename) costs the shard, which build.py then writes
from scratch.
"""

import errno
import io
import os
import secrets
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from trainyard import native
from trainyard.core.exits import FULL
from trainyard.core.files import drop_cached, sync_folder
from trainyard.core.storage import storage
from trainyard.data import limits
from trainyard.prepare import converting, decoding, rewriting
from trainyard.prepare.archives.members import DamagedMemberError, Member, damage_error, extract, name_of
from trainyard.prepare.job import Finished, Job, write_record
from trainyard.prepare.plan import ShardPlan
from trainyard.prepare.progress import say
from trainyard.prepare.ranges import Request, requests
from trainyard.prepare.timing import Spent
from trainyard.shards.index import INDEX_DTYPE
from trainyard.shards.manifest import ShardEntry
from trainyard.shards.tar_member import BLOCK, OVERHEAD, TAR_END, frame

# A damaged image is fetched again before it is blamed on the archive
TRIES = 3
_MEMBER_FIELDS = Member._fields[1:]

Result = TypeVar("Result")


class OpenShard:
    """An unfinished shard. Any threads fetch its requests concurrently; then one thread closes it.

    Images whose size is known are written at their planned position. Rewritten and re-encoded ones are written in
    order of arrival, and moved to their final positions when all are there.
    """

    def __init__(self, job: Job, plan: ShardPlan, spent: Spent) -> None:
        self.job, self.plan, self._spent = job, plan, spent
        # Pods may share a host's name and a process id
        unique = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
        stem = job.work / f"{plan.split}-{plan.number:05d}.{unique}"
        self._tar, self._index, self._second = (Path(f"{stem}.{end}.tmp") for end in ("tar", "npy", "two"))
        self._lock = threading.Lock()
        # Name and cause of each image that cannot be decoded
        self.undecodable: dict[int, tuple[str, str]] = {}
        self._seekable: Counter[str] = Counter()
        self._rows = np.empty(len(plan.members), INDEX_DTYPE)
        self._rows["label"] = plan.members["label"]
        self._rows["offset"] = plan.positions + np.uint64(BLOCK)
        self._end = 0
        self.requests = list(requests(plan.members))
        self._left = len(self.requests)
        self._failed = False  # a write has failed
        self._descriptor = os.open(self._tar, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        if not job.resized:
            os.ftruncate(self._descriptor, plan.bytes)

    def fetch(self, request: Request, buffer: memoryview) -> tuple[int, bool]:
        """Write a request's samples; return the bytes of their images, and whether the shard can be closed now."""
        clock = self._spent.clock()
        source, length = self.job.container.source, request.stop - request.start
        raw = buffer[:length] if length <= len(buffer) else memoryview(bytearray(length))
        source.read_into(request.start, raw)
        clock.lap("fetch")
        rows = self.plan.members[request.samples]
        columns = (rows[name].tolist() for name in ("span", *_MEMBER_FIELDS))
        written = 0
        for at, span, *values in zip(request.samples, *columns, strict=True):
            member = Member("", *values)
            content = self._checked(member, span, raw[member.offset - request.start :][:span])
            clock.lap("check")
            try:
                image, crc32 = self._decoded(member, content)
                clock.lap("decode")
                if self.job.seekable:
                    image, crc32 = self._rewritten(image, crc32)
                    clock.lap("rewrite")
            except decoding.UndecodableError as error:
                clock.lap("decode")
                name = name_of(self.job.container, member.offset)
                with self._lock:
                    self.undecodable[at] = name, str(error)
                continue
            self._write(at, image, crc32)
            written += len(image)
            clock.lap("write")
        clock.end()
        with self._lock:
            self._left -= 1
            return written, self._left == 0

    def close(self) -> bool:
        """Publish the shard, unless images were found that cannot be decoded and are not to be left out."""
        if self.undecodable and not self.job.leave_out:
            return False
        clock = self._spent.clock()
        if self.undecodable or self.job.resized:
            self._lay_out()
            clock.lap("write")
        os.fsync(self._descriptor)
        if self._failed:
            self._verify()
        content = io.BytesIO()  # into a file of the kernel's numpy writes by C's streams, and drops their errors
        np.save(content, self._rows)
        with self._index.open("xb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        clock.lap("sync")
        digests = storage.hash_file(self._tar), storage.hash_file(self._index)
        clock.lap("hash")
        self._publish(*digests)
        clock.lap("sync")
        clock.end()
        return True

    def discard(self) -> None:
        """Remove what is left of temporary files and close them; no thread may be at work on them any more."""
        self.remove()
        with suppress(OSError):  # it was synced, or counts for nothing
            os.close(self._descriptor)

    def remove(self) -> None:
        """Remove what is left of temporary files, if storage lets them be removed now; the next start does it too."""
        for path in (self._tar, self._index, self._second):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _decoded(self, member: Member, content: memoryview) -> tuple[memoryview | bytes, int]:
        """Return an image with its CRC-32, converted and re-encoded if that is wanted.

        Whatever no JPEG is gets decoded as a check. So do JPEGs, as far as `decode` says, and, where none is rewritten,
        those with an unusual header and those that do not end as one does.
        """
        # Some containers know no CRC-32
        crc32 = member.crc32 or zlib.crc32(content)
        made: memoryview | bytes = content
        if self.job.convert != "none" and converting.format_of(content):
            made = decoding.convert(content)
        if self.job.reencode is not None:
            made = decoding.reencode(made, self.job.reencode)
        if made is not content:
            return made, zlib.crc32(made)
        if decoding.wants_check(self.job.decode, crc32) or not limits.is_jpeg(content) or self._looks_bad(content):
            decoding.check(content)
        return content, crc32

    def _looks_bad(self, jpeg: memoryview) -> bool:
        """Whether a JPEG that is not rewritten may be one that training refuses, by its beginning and its end."""
        cut = self.job.decode == "sampled" and jpeg[-2:] != limits.JPEG_END
        return not self.job.seekable and (cut or not limits.is_usual_jpeg(jpeg))

    def _rewritten(self, image: memoryview | bytes, crc32: int) -> tuple[memoryview | bytes, int]:
        """Make an image of this CRC-32 seekable where that can be done exactly; return it with its new CRC-32.

        What was rewritten was read to its end; a JPEG that was not is decoded, unless all are: it may be broken.
        """
        content, outcome = rewriting.rewrite(image)
        if outcome != rewriting.REWRITTEN and self.job.decode != "all" and limits.is_jpeg(image):
            decoding.check(image)
        with self._lock:
            self._seekable[outcome] += 1
        return content, crc32 if content is image else native.crc32(bytes(content))

    def _write(self, at: int, content: memoryview | bytes, crc32: int) -> None:
        """Write a sample where it belongs, or behind those before it if its place is not known yet."""
        row = self._rows[at]
        row["size"], row["crc32"] = len(content), crc32
        if not self.job.resized:
            parts = frame(self.plan.first_id + at, int(row["label"]), content)
            self._do(self._tar, self._descriptor, lambda file: _write_all(file, parts, int(self.plan.positions[at])))
            return
        with self._lock:
            row["offset"], self._end = self._end, self._end + len(content)
        self._do(self._tar, self._descriptor, lambda file: _write_all(file, (content,), int(row["offset"])))

    def _do(self, path: Path, descriptor: int, action: Callable[[int], Result]) -> Result:
        """Do something with an open file, and again with the file reopened while storage fails."""
        try:
            return action(descriptor)
        except OSError as error:
            if error.errno in FULL:
                raise
            if not self._failed:
                say(f"{path}: {error.strerror}; retried, and all is read back in the end")
            self._failed = True
            return storage.recover(path, _reopened, path, descriptor, action)

    def _read(self, path: Path, descriptor: int, row: Any) -> bytes:
        """Read back an image of the index."""
        size, offset = int(row["size"]), int(row["offset"])
        return self._do(path, descriptor, lambda file: _read_all(file, size, offset))

    def _verify(self) -> None:
        """Read back all images past the kernel's cache; raises OSError where one does not have its checksum."""
        fresh = os.open(self._tar, os.O_RDONLY | os.O_CLOEXEC)
        try:
            drop_cached(fresh)
            for row in self._rows:
                if zlib.crc32(self._read(self._tar, fresh, row)) != row["crc32"]:
                    raise OSError(errno.EIO, "what was written is not there after a failure", str(self._tar))
        finally:
            os.close(fresh)

    def _lay_out(self) -> None:
        """Write the tar again, with each image at its final position."""
        kept = np.array([at for at in range(len(self._rows)) if at not in self.undecodable], np.int64)
        second = os.open(self._second, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        position = 0
        for at in kept.tolist():
            position = self._move(second, at, position)
        os.ftruncate(second, position + TAR_END)
        self._rows = self._rows[kept]
        os.dup2(second, self._descriptor, inheritable=False)
        os.close(second)
        self._second.replace(self._tar)

    def _move(self, second: int, at: int, position: int) -> int:
        """Write a sample of the first file into the second; return where the next one begins there.

        A function of its own: two large images must not be in memory, one that was written and one that is read.
        """
        row = self._rows[at]
        content = self._read(self._tar, self._descriptor, row)
        parts = frame(self.plan.first_id + at, int(row["label"]), content)
        self._do(self._second, second, lambda file: _write_all(file, parts, position))
        row["offset"] = position + BLOCK
        return position + OVERHEAD + -(-len(content) // BLOCK) * BLOCK

    def _publish(self, sha256: str, index_sha256: str) -> None:
        """Rename the files to their final names, then write the record of the finished shard."""
        job, plan = self.job, self.plan
        file, index = job.file_names(plan)
        entry = ShardEntry(
            file=file,
            samples=len(self._rows),
            bytes=self._tar.stat().st_size,
            sha256=sha256,
            index=index,
            index_bytes=self._index.stat().st_size,
            index_sha256=index_sha256,
        )
        # An older record must not vouch for the new files, nor a new record for older files
        record = job.record_path(plan)
        with suppress(FileNotFoundError):
            record.unlink()
            sync_folder(job.work)
        self._index.replace(job.root / entry.index)
        self._tar.replace(job.root / entry.file)
        sync_folder(job.root / plan.split)
        left_out = tuple(sorted(name for name, _ in self.undecodable.values()))
        write_record(job, plan, Finished(entry, left_out, dict(self._seekable)))

    def _checked(self, member: Member, span: int, raw: memoryview) -> memoryview:
        """Extract an image from the fetched bytes; fetch it again separately if it is damaged."""
        for attempt in range(1, TRIES + 1):
            try:
                return extract(raw, member)
            except DamagedMemberError as error:
                if attempt == TRIES:
                    name = name_of(self.job.container, member.offset)
                    how = f"{error} (at byte {member.offset:,}), also when read {TRIES} times"
                    remedy = "get the archive again, or name this member under 'skip'"
                    raise damage_error(self.job.container, name, how, remedy) from None
            raw = self.job.container.source.read_range(member.offset, span)
        raise AssertionError("unreachable")


def _reopened(path: Path, descriptor: int, action: Callable[[int], Result]) -> Result:
    """Do something with a file that is reopened, and use that one from now on."""
    fresh = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        result = action(fresh)
        # In place of the old file under its number, which other threads may be writing to
        os.dup2(fresh, descriptor, inheritable=False)
        return result
    finally:
        os.close(fresh)


def _write_all(descriptor: int, parts: Sequence[memoryview | bytes], offset: int) -> None:
    """Write the parts one after the other at an offset, in one call as a rule."""
    total = sum(map(len, parts))
    done = os.pwritev(descriptor, parts, offset)
    if done < total:
        rest = b"".join(parts)[done:]
        while rest:
            count = os.pwrite(descriptor, rest, offset + done)
            done, rest = done + count, rest[count:]


def _read_all(descriptor: int, size: int, offset: int) -> bytes:
    """Read back what was written before."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        data += os.pread(descriptor, size - len(data), offset + len(data)) or bytes(size - len(data))
    return data
