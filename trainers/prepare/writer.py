"""Writes one shard: fetches its samples, checks each, puts it at its planned place, and publishes tar and index.

Files are made under temporary names in the work folder, synced, and renamed; then a record of the finished shard is
written the same way. A shard without a record is redone, whatever was left of it.
"""

import errno
import io
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainers.data.shards import INDEX_DTYPE
from trainers.exits import Exit, ExitError, UserError
from trainers.prepare import manifest as manifests
from trainers.prepare.archive import Archive, DamagedMemberError, Member, extract, own_name
from trainers.prepare.manifest import ShardEntry
from trainers.prepare.plan import BLOCK, ShardPlan
from trainers.prepare.sources.base import Source

WORK = ".prepare"
# One request fetches neighbours up to this size, and reads over gaps up to that one rather than ask again
LARGEST_REQUEST = 4 << 20
LARGEST_GAP = 64 << 10
# A damaged picture is fetched again before it is blamed on the archive
TRIES = 3
DECODE_ONE_OF = 100


@dataclass(frozen=True)
class Job:
    """What every shard of a preparation shares."""

    root: Path
    source: Source
    plan_key: str
    decode: Literal["sampled", "all", "none"]
    # Told how many samples and bytes of pictures were just written; raises to stop the work
    on_samples: Callable[[int, int], None]

    @property
    def work(self) -> Path:
        """The folder of temporary files and records."""
        return self.root / WORK

    def record_path(self, plan: ShardPlan) -> Path:
        """Where the record of a finished shard lies."""
        return self.work / f"{plan.split}-{plan.number:05d}.json"


def finished(job: Job, plan: ShardPlan) -> ShardEntry | None:
    """Return a shard's entry if it was finished under the same plan and its files still have their sizes."""
    try:
        record = json.loads(job.record_path(plan).read_text())
        entry = ShardEntry(**record["shard"])
        sizes = [(job.root / name).stat().st_size for name in (entry.file, entry.index)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    good = record["plan"] == job.plan_key and sizes == [entry.bytes, entry.index_bytes]
    return entry if good and entry.bytes == plan.bytes and entry.samples == len(plan.members) else None


def write_shard(job: Job, plan: ShardPlan) -> ShardEntry:
    """Make one shard from its source, publish it and its record."""
    stem = f"{plan.split}-{plan.number:05d}.{os.uname().nodename}-{os.getpid()}"
    tar, index = job.work / f"{stem}.tar.tmp", job.work / f"{stem}.npy.tmp"
    try:
        with tar.open("xb") as file:
            rows = _fill(job, plan, file.fileno())
            os.fsync(file.fileno())
        with index.open("xb") as file:
            np.save(file, rows)
            file.flush()
            os.fsync(file.fileno())
        return _publish(job, plan, tar, index)
    except OSError as error:
        raise storage_error(job.root, error) from None
    finally:
        for path in (tar, index):
            path.unlink(missing_ok=True)


def storage_error(root: Path, error: OSError) -> Exception:
    """Explain a failed write: a full disk is the user's to solve, anything else may pass."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"{root} is full ({os.strerror(error.errno)}): free space there or enlarge the claim, then run the same "
            "command again; finished shards are kept"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(
            f"{root} cannot be written: {error.strerror} as uid {os.getuid()}; check the claim's permissions"
        )
    return ExitError(
        f"writing to {root} failed: {error}; run the same command again, finished shards are kept", Exit.FAILED
    )


def _publish(job: Job, plan: ShardPlan, tar: Path, index: Path) -> ShardEntry:
    """Give the files their names, then write the record that vouches for them."""
    entry = ShardEntry(
        file=f"{plan.stem}.tar",
        samples=len(plan.members),
        bytes=tar.stat().st_size,
        sha256=manifests.sha256_file(tar),
        index=f"{plan.stem}.index.npy",
        index_bytes=index.stat().st_size,
        index_sha256=manifests.sha256_file(index),
    )
    # An older record must not vouch for the new files, nor the other way round
    record = job.record_path(plan)
    with suppress(FileNotFoundError):
        record.unlink()
        manifests.sync_folder(job.work)
    index.replace(job.root / entry.index)
    tar.replace(job.root / entry.file)
    manifests.sync_folder(job.root / plan.split)
    text = json.dumps({"plan": job.plan_key, "shard": asdict(entry)}, indent=1, sort_keys=True) + "\n"
    manifests.write_atomically(record, text.encode())
    return entry


def _fill(job: Job, plan: ShardPlan, descriptor: int) -> NDArray[Any]:
    """Write every sample to its planned place and return the rows of the index."""
    rows = np.empty(len(plan.members), INDEX_DTYPE)
    rows["offset"] = plan.positions + np.uint64(BLOCK)
    for name in ("size", "label", "crc32"):
        rows[name] = plan.members[name]
    os.ftruncate(descriptor, plan.bytes)
    for start, stop, positions in requests(plan.members):
        buffer = job.source.read_range(start, stop - start)
        written = 0
        for at in positions:
            member = plan.members[at]
            name, content = _checked(job, member, buffer[int(member["offset"]) - start :])
            if _wants_decode(job.decode, int(member["crc32"])):
                _decode(name, content, job.source.label)
            parts = frame(plan.first_id + at, int(member["label"]), content)
            _write_all(descriptor, parts, int(plan.positions[at]))
            written += len(content)
        job.on_samples(len(positions), written)
    return rows


def requests(members: NDArray[Any]) -> Iterator[tuple[int, int, list[int]]]:
    """Gather samples that lie close together in the archive: start, stop, and which samples, of each request."""
    order = np.argsort(members["offset"], kind="stable")
    starts = members["offset"][order].tolist()
    stops = (members["offset"] + members["span"])[order].tolist()
    first = 0
    for i in range(1, len(starts) + 1):
        if i < len(starts) and starts[i] - stops[i - 1] <= LARGEST_GAP and stops[i] - starts[first] <= LARGEST_REQUEST:
            continue
        yield starts[first], stops[i - 1], order[first:i].tolist()
        first = i


def frame(sample_id: int, label: int, content: memoryview) -> tuple[bytes, memoryview, bytes]:
    """Return what a sample's place in the tar holds: header, picture, and padding with the label's member."""
    stem = f"{sample_id:09d}"
    ending = "png" if bytes(content[:8]) == b"\x89PNG\r\n\x1a\n" else "jpg"
    text = str(label).encode()
    tail = bytes(-len(content) % BLOCK) + _tar_header(f"{stem}.cls", len(text)) + text.ljust(BLOCK, b"\0")
    return _tar_header(f"{stem}.{ending}", len(content)), content, tail


_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")


def _tar_header(name: str, size: int) -> bytes:
    """Make a ustar header without anything that depends on the clock or the user."""
    zero = b"0000000\0"
    head = name.encode(), b"0000644\0", zero, zero, f"{size:011o}\0".encode(), b"00000000000\0"
    rest = b"0", b"", b"ustar\0", b"00", b"", b"", zero, zero, b""
    blank = _HEADER.pack(*head, b" " * 8, *rest)
    return _HEADER.pack(*head, f"{sum(blank):06o}\0 ".encode(), *rest)


def _checked(job: Job, row: Any, raw: memoryview) -> tuple[str, memoryview]:
    """Take a picture out of what was fetched; fetch it again by itself if it is damaged."""
    values = {name: int(row[name]) for name in Member._fields if name != "name"}
    member, span = Member(name="", **values), int(row["span"])
    for attempt in range(1, TRIES + 1):
        try:
            content = extract(raw[:span], member)
            return own_name(raw).decode("utf-8", "replace"), content
        except DamagedMemberError as error:
            if attempt == TRIES:
                # The name in the member's own header may be what is damaged
                name = next((m.name for m in Archive(job.source).members() if m.offset == member.offset), "a member")
                raise UserError(
                    f"{name} in {job.source.label} is damaged at byte {member.offset:,}: {error}, also when "
                    f"read {TRIES} times; get the archive again, or name this member under 'skip'"
                ) from None
        raw = job.source.read_range(member.offset, span)
    raise AssertionError("unreachable")


def _wants_decode(decode: str, crc32: int) -> bool:
    return decode == "all" or (decode == "sampled" and crc32 % DECODE_ONE_OF == 0)


def _decode(name: str, content: memoryview, label: str) -> None:
    """Decode a picture to its end, as training will have to."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
    except Exception as error:
        raise UserError(
            f"{name} in {label} cannot be decoded as a picture ({type(error).__name__}: {str(error)[:200]}); "
            "name it under 'skip'"
        ) from None


def _write_all(descriptor: int, parts: tuple[bytes, memoryview, bytes], offset: int) -> None:
    """Write the parts one after the other at an offset, in one call as a rule."""
    total = sum(map(len, parts))
    done = os.pwritev(descriptor, parts, offset)
    if done < total:
        rest = b"".join(parts)[done:]
        while rest:
            count = os.pwrite(descriptor, rest, offset + done)
            done, rest = done + count, rest[count:]
