"""The manifest of a prepared folder: its files, the source and settings they were made from, and checksums.

`manifest.json` is written last, by rename: a folder that has it is complete. It holds no clock and nothing random, so
the same source and settings give the same bytes.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainyard.core.exits import UserError
from trainyard.core.files import MISSING, json_checksum, parse_json
from trainyard.core.storage import storage

FORMAT = 1
FILE = "manifest.json"
SPLITS = ("train", "val")
CLASSES_FILE = "classes.json"
WITHOUT_TRAINING = "classes that the archive names, without training images"  # of `ignored`, by class
WORK = ".prepare"  # folder of what a preparation needs for itself
REMEDY = "run the dataset's preparation again (`trainyard prepare build`); it redoes only what is missing"
REPAIR = "run `trainyard prepare repair` on {} with its settings; it redoes only what is damaged"


@dataclass(frozen=True)
class ShardEntry:
    """One tar file and the index beside it; paths are relative to the prepared folder."""

    file: str
    samples: int
    bytes: int
    sha256: str
    index: str
    index_bytes: int
    index_sha256: str


@dataclass(frozen=True)
class SplitEntry:
    """The shards of `train` or `val`, in order; sample ids count through them from 0."""

    samples: int
    bytes: int
    shards: tuple[ShardEntry, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything that a reader needs to trust a prepared folder. `plan` is the key of source and settings together."""

    name: str
    classes: int
    settings: Mapping[str, Any]
    source: Mapping[str, Any]
    plan: str
    splits: Mapping[str, SplitEntry]
    classes_sha256: str
    # Names of images that cannot be decoded and were left out on request
    left_out: tuple[str, ...] = ()
    # How many images were rewritten so that areas of them can be read alone, and how many were not for which reason
    seekable: Mapping[str, int] | None = None
    # How many files of the source are no data, by why they are none and by kind
    ignored: Mapping[str, Mapping[str, int]] | None = None
    # What the file that it was read from has; version 0.1.0 wrote none
    checksum: str | None = field(default=None, compare=False)

    def to_json(self) -> str:
        """Render the manifest's file, with a checksum of what it says."""
        data = {"format": FORMAT, **asdict(self)}
        del data["checksum"]
        if not self.left_out:
            del data["left_out"]
        for key in ("seekable", "ignored"):
            if data[key] is None:
                del data[key]
        return json.dumps({**data, "checksum": json_checksum(data)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Read the manifest's file; anything unexpected raises ValueError, KeyError or TypeError."""
        data = parse_json(text)
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
        checksum = data.pop("checksum", None)
        if checksum is not None and checksum != json_checksum(data):
            raise ValueError("it does not have its checksum")
        if (found := data.pop("format", None)) != FORMAT:
            raise ValueError(f"format {found}, this version reads format {FORMAT}")
        splits = {
            name: SplitEntry(split["samples"], split["bytes"], tuple(ShardEntry(**shard) for shard in split["shards"]))
            for name, split in data.pop("splits").items()
        }
        return cls(splits=splits, left_out=tuple(data.pop("left_out", ())), checksum=checksum, **data)


def exists(root: Path) -> bool:
    """Tell whether the folder says of itself that it is complete; raises OSError and StorageError."""
    try:
        return stat.S_ISREG(storage.stat(root / FILE).st_mode)
    except MISSING:
        return False


def load(root: Path) -> Manifest:
    """Read the manifest of a prepared folder; raises UserError and StorageError."""
    path = root / FILE
    try:
        try:
            return Manifest.from_json(storage.read_text(path))
        except (ValueError, KeyError, TypeError):  # what a second look shows too is so
            return Manifest.from_json(storage.read_text(path))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the dataset is not prepared, or not to its end; {REMEDY}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check the claim and its permissions") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a manifest ({error}); delete it and {REMEDY}") from None


def wrong_files(root: Path, manifest: Manifest) -> list[str]:
    """Compare the files and their sizes with the manifest, and the classes' content; each problem names its file.

    Raises StorageError.
    """
    expected: list[tuple[str, int]] = []
    for split in manifest.splits.values():
        for shard in split.shards:
            expected += [(shard.file, shard.bytes), (shard.index, shard.index_bytes)]
    problems = []
    for file, size in expected:
        try:
            found = storage.stat(root / file, listed=True).st_size
        except OSError as error:
            problems.append(f"{root / file}: {error.strerror}")
        else:
            if found != size:
                problems.append(f"{root / file} has {found:,} bytes instead of {size:,}")
    classes = root / CLASSES_FILE
    try:
        wanted = manifest.classes_sha256  # what a second look shows too is so
        if storage.hash_file(classes) != wanted != storage.hash_file(classes):
            problems.append(f"{classes} does not have its SHA-256")
    except OSError as error:
        problems.append(f"{classes} is missing ({error.strerror})")
    return problems
