"""Reads prepared shards: any sample of a split by its number, at any time, from any thread.

A shard is an uncompressed tar that every tar tool and webdataset can read; beside it lies an index of (offset, size,
label, CRC-32) per sample. Random access through the index makes a global shuffle and an exact resume a matter of
choosing numbers.

Samples are read with `pread`, not through `mmap`: on network storage one sample is then one request instead of one per
page, and a file that vanishes is an error with a name instead of a SIGBUS.
"""

import bisect
import hashlib
import io
import json
import os
import resource
import threading
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainers.exits import UserError
from trainers.prepare import manifest as manifests

INDEX_DTYPE: Final = np.dtype([("offset", "<u8"), ("size", "<u4"), ("label", "<u4"), ("crc32", "<u4")])


def open_split(root: Path, split: str) -> "Shards":
    """Open `train` or `val` of a prepared folder, after checking that its files are there with the right sizes."""
    manifest = manifests.load(root)
    if split not in manifest.splits:
        raise UserError(f"{root} has no split '{split}', only {', '.join(sorted(manifest.splits))}")
    if problems := manifests.wrong_files(root, manifest):
        raise UserError(f"{problems[0]} ({len(problems)} wrong in all); {manifests.REMEDY}")
    return Shards(root, split, manifest)


class Shards:
    """One split: `len()`, `labels`, and `read(i)` for i in 0 .. len - 1."""

    def __init__(self, root: Path, split: str, manifest: manifests.Manifest) -> None:
        entries = manifest.splits[split].shards
        self.root = root
        self.split = split
        self.classes = manifest.classes
        self.class_names = _class_names(root)
        self._files = [root / entry.file for entry in entries]
        self._starts = [0]
        for entry in entries:
            self._starts.append(self._starts[-1] + entry.samples)
        empty = np.empty(0, INDEX_DTYPE)
        index = np.concatenate([empty, *(_load_index(root, entry, manifest.classes) for entry in entries)])
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
        """Return the encoded picture of sample i, checked against its CRC-32."""
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        shard = bisect.bisect_right(self._starts, i) - 1
        offset, size = int(self._offsets[i]), int(self._sizes[i])
        try:
            data = _read_exactly(self._descriptor(shard), size, offset)
        except OSError as error:
            path = self._files[shard]
            raise UserError(
                f"{path} cannot be read (sample {i}): {error.strerror}; check the claim's storage"
            ) from None
        if zlib.crc32(data) != self._checksums[i]:
            raise UserError(
                f"{self._files[shard]} is damaged at sample {i} of {self.split} (byte {offset:,}): its checksum is "
                f"wrong; run `python -m trainers.prepare repair` on {self.root}"
            )
        return data

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
        _allow_open_files(len(self._files) + 256)

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


def _load_index(root: Path, entry: manifests.ShardEntry, classes: int) -> NDArray[Any]:
    """Read one index and check it against the manifest: a changed label would be trained on without a word."""
    path = root / entry.index
    try:
        data = path.read_bytes()
        index = np.load(io.BytesIO(data), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is not an index ({error}); {manifests.REMEDY}") from None
    good = index.dtype == INDEX_DTYPE and index.shape == (entry.samples,)
    sound = good and hashlib.sha256(data).hexdigest() == entry.index_sha256
    if not sound or (entry.samples and int(index["label"].max()) >= classes):
        raise UserError(f"{path} does not fit the manifest; {manifests.REPAIR.format(root)}")
    return index  # type: ignore[no-any-return]


def _class_names(root: Path) -> list[str]:
    """Read the human names of the classes, by class index."""
    path = root / manifests.CLASSES_FILE
    try:
        return [str(entry["name"]) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a list of classes ({error}); {manifests.REMEDY}") from None


def _allow_open_files(wanted: int) -> None:
    """Raise this process's soft limit of open files up to what the split may need, if the hard limit lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
