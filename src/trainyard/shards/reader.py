"""Reads prepared shards: any sample of a split by its number, from any thread.

A shard is an uncompressed tar that every tar tool and webdataset can read; beside it is an index of (offset, size,
label, CRC-32) per sample. With random access through the index, a global shuffle and an exact resume only choose
numbers.

Samples are read with `pread`, not through `mmap`: on network storage one sample is then one request instead of one per
page, and a file that vanishes is an error with a name instead of a SIGBUS.

A read that fails, or whose bytes do not have their checksum, is done again from a reopened file. The way of a read that
succeeds has no call for this.
"""

import bisect
import os
import resource
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainyard.core.exits import UserError, too_many_files
from trainyard.core.files import drop_cached, parse_json
from trainyard.core.storage import storage
from trainyard.native import crc32
from trainyard.shards import manifest as manifests
from trainyard.shards.index import INDEX_DTYPE, load_index
from trainyard.shards.sample_names import member_name

MAX_GAP: Final = 64 << 10  # bytes: reading them and throwing them away is cheaper than asking again
MAX_READ: Final = 4 << 20  # bytes in one read
Ids = NDArray[np.int64]


class DamagedSampleError(Exception):
    """A sample whose bytes do not have their checksum: its number, and where it begins."""

    def __init__(self, sample: int, offset: int) -> None:
        super().__init__(sample, offset)
        self.sample = sample
        self.offset = offset


def open_split(root: Path, split: str) -> "Shards":
    """Open `train` or `val` of a prepared folder, after checking that its files are there with the right sizes."""
    return open_splits(root, [split])[split]


def open_splits(root: Path, splits: Collection[str]) -> "dict[str, Shards]":
    """Open splits of a prepared folder, whose files are checked once for all of them."""
    manifest = manifests.load(root)
    for split in splits:
        if split not in manifest.splits:
            raise UserError(f"{root} has no split '{split}', only {', '.join(sorted(manifest.splits))}")
    if problems := manifests.wrong_files(root, manifest):
        raise UserError(f"{problems[0]} ({len(problems)} wrong in all); {manifests.REMEDY}")
    return {split: Shards(root, split, manifest) for split in splits}


class Shards:
    """One split: `len()`, `labels`, and `read(i)` for i in 0 .. len - 1."""

    def __init__(self, root: Path, split: str, manifest: manifests.Manifest) -> None:
        entries = manifest.splits[split].shards
        self.root = root
        self.split = split
        self.classes = manifest.classes
        self.class_keys, self.class_names = _classes(root)
        self._files = [root / entry.file for entry in entries]
        self._starts = [0]
        for entry in entries:
            self._starts.append(self._starts[-1] + entry.samples)
        empty = np.empty(0, INDEX_DTYPE)
        index = np.concatenate([empty, *(load_index(root, entry, manifest.classes) for entry in entries)])
        self.labels: NDArray[np.int64] = index["label"].astype(np.int64)
        self._offsets = index["offset"].copy()
        self._sizes = index["size"].copy()
        self._checksums = index["crc32"].copy()
        self._descriptors: list[int] = []
        self._prepare_descriptors()

    def __len__(self) -> int:
        """Count the samples."""
        return self._starts[-1]

    def read(self, i: int) -> bytes:
        """Return the encoded image of sample i, checked against its CRC-32."""
        return self.read_many(np.array([i]))[0]

    def read_many(self, ids: Ids) -> list[bytes]:
        """Return the encoded images of some samples, with one read for those that `neighbours` puts together."""
        found = [b""] * len(ids)
        for places in self.neighbours(ids):
            for place, content in zip(places, self.read_together(ids[places]), strict=True):
                found[place] = content
        return found

    def neighbours(self, ids: Ids) -> list[Ids]:
        """Places in `ids`, grouped by what one read fetches: samples of one shard with little between them."""
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self):
            raise IndexError(f"samples {ids.min()} to {ids.max()} of {len(self)}")
        order = np.argsort(ids, kind="stable")
        starts = self._offsets[ids[order]].astype(np.int64)
        ends = starts + self._sizes[ids[order]]
        shards = np.searchsorted(self._starts, ids[order], side="right")
        apart = (np.diff(shards) != 0) | (starts[1:] - ends[:-1] > MAX_GAP)
        cuts = [0]
        for k in range(1, len(order)):
            if apart[k - 1] or ends[k] - starts[cuts[-1]] > MAX_READ:
                cuts.append(k)
        return np.split(order, cuts[1:]) if len(order) else []

    def name(self, i: int) -> str:
        """Return what people call a sample: with its name in the source where the preparation has kept that."""
        member = member_name(self.root, self.split, i)
        return (
            f"sample {i} of {self.split} ({self._files[self._shard(i)]}{f'; {member} of the source' if member else ''})"
        )

    def _shard(self, i: int) -> int:
        return bisect.bisect_right(self._starts, i) - 1

    def read_together(self, ids: Ids) -> list[bytes]:
        """Read samples that `neighbours` put together, in that order, at once; check each one's CRC-32.

        Raises UserError where a second read confirms damage or a missing file, and StorageError.
        """
        shard = self._shard(int(ids[0]))
        start = int(self._offsets[ids[0]])
        size = int(self._offsets[ids[-1]]) + int(self._sizes[ids[-1]]) - start
        try:
            return self._checked(_read_exactly(self._descriptor(shard), size, start), ids, start)
        except (OSError, DamagedSampleError):
            return self._read_again(shard, ids, start, size)

    def _read_again(self, shard: int, ids: Ids, start: int, size: int) -> list[bytes]:
        """Read from a reopened file, for as long as its storage fails; damage counts once it is read twice in a row."""
        path, damage = self._files[shard], None
        for _ in range(2):
            try:
                return storage.recover(path, self._read_reopened, shard, ids, start, size)
            except DamagedSampleError as error:
                damage = error
            except OSError as error:
                raise UserError(
                    f"{path} cannot be read (sample {ids[0]}): {error.strerror}; check the claim's storage"
                ) from None
        assert damage is not None
        raise UserError(
            f"{path} is damaged at sample {damage.sample} of {self.split} (byte {damage.offset:,}): its checksum is "
            f"wrong; run `trainyard prepare repair` on {self.root}"
        )

    def _read_reopened(self, shard: int, ids: Ids, start: int, size: int) -> list[bytes]:
        """Read past the kernel's cache from a file that is opened anew, and use that one from now on."""
        fresh = os.open(self._files[shard], os.O_RDONLY | os.O_CLOEXEC)
        try:
            drop_cached(fresh, start, size)
            data = _read_exactly(fresh, size, start)
            os.posix_fadvise(fresh, 0, 0, os.POSIX_FADV_RANDOM)
            # In place of the old file under its number, which other threads may be reading from
            os.dup2(fresh, self._descriptor(shard), inheritable=False)
        finally:
            os.close(fresh)
        return self._checked(data, ids, start)

    def _checked(self, data: bytes, ids: Ids, start: int) -> list[bytes]:
        """Split what was read from byte `start` into samples; raises DamagedSampleError."""
        found = []
        for i in ids:
            offset = int(self._offsets[i]) - start
            content = data if len(ids) == 1 else data[offset : offset + int(self._sizes[i])]
            if crc32(content) != self._checksums[i]:
                raise DamagedSampleError(int(i), start + offset)
            found.append(content)
        return found

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        with self._lock:
            for descriptor in self._descriptors:
                if descriptor >= 0:
                    os.close(descriptor)
            self._descriptors = [-1] * len(self._files)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process, so that loader workers can be started in any way."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_descriptors")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare_descriptors()

    def _prepare_descriptors(self) -> None:
        self._lock = threading.Lock()
        self._descriptors = [-1] * len(self._files)
        _allow_open_files(len(self._files), f"{self.root}: {self.split} has {len(self._files):,} shards")

    def _descriptor(self, shard: int) -> int:
        """Open a shard at its first use."""
        if self._descriptors[shard] < 0:
            with self._lock:
                if self._descriptors[shard] < 0:
                    descriptor = os.open(self._files[shard], os.O_RDONLY | os.O_CLOEXEC)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                    self._descriptors[shard] = descriptor
        return self._descriptors[shard]


def _read_exactly(descriptor: int, size: int, offset: int) -> bytes:
    """Read `size` bytes; fewer come back only at the end of the file."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _classes(root: Path) -> tuple[list[str], list[str]]:
    """Read the classes, by index: as the archive names them, and for people."""
    path = root / manifests.CLASSES_FILE
    try:
        entries = parse_json(storage.read_text(path))
        names = [str(entry["name"]) for entry in entries]
        return [str(entry.get("synset", entry["name"])) for entry in entries], names
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a list of classes ({error}); {manifests.REMEDY}") from None


def _allow_open_files(shards: int, what: str) -> None:
    """Raise this process's soft limit of open files up to what the split may need, if the hard limit lets it.

    Raises UserError where the limit is below what the split needs beside the files that are open already.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < shards + len(list(Path("/proc/self/fd").iterdir())):
        raise too_many_files(what)
    target = shards + 256 if hard == resource.RLIM_INFINITY else min(shards + 256, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
