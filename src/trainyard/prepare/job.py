"""The state that all shards of a preparation share, and the records of finished ones."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainyard.core.files import MISSING, json_checksum, parse_json
from trainyard.core.storage import storage
from trainyard.prepare.archives.members import Container
from trainyard.prepare.plan import ShardPlan
from trainyard.prepare.settings import Reencode
from trainyard.shards.manifest import WORK, ShardEntry


@dataclass(frozen=True)
class Job:
    """The state that all shards of a preparation share."""

    root: Path
    container: Container
    plan_key: str
    decode: Literal["sampled", "all", "none"] = "sampled"
    convert: Literal["none", "png"] = "none"
    reencode: Reencode | None = None
    seekable: bool = False
    # Images that cannot be decoded: leave them out, or fail
    leave_out: bool = False

    @property
    def resized(self) -> bool:
        """Whether images get other sizes than the plan knows."""
        return self.seekable or self.reencode is not None or self.convert != "none"

    @property
    def work(self) -> Path:
        """The folder of temporary files and records."""
        return self.root / WORK

    def record_path(self, plan: ShardPlan) -> Path:
        """Where the record of a finished shard lies."""
        return self.work / f"{plan.split}-{plan.number:05d}.json"

    @staticmethod
    def file_names(plan: ShardPlan) -> tuple[str, str]:
        """Return what a shard's tar and its index are called below the root."""
        return f"{plan.stem}.tar", f"{plan.stem}.index.npy"


CHECKSUM = "checksum"  # in a record: of all else that it says


class Finished(NamedTuple):
    """The record of a finished shard."""

    entry: ShardEntry
    left_out: tuple[str, ...]
    # How many images were rewritten, and how many kept their bytes for which reason
    seekable: dict[str, int]


def read_record(job: Job, plan: ShardPlan) -> Finished | None:
    """Return a shard's record if it was finished under the same plan and its files still have their sizes.

    What it says goes into the manifest, so one that has changed since it was written counts for nothing. Raises OSError
    and StorageError.
    """
    path = job.record_path(plan)
    try:
        record = parse_json(storage.read_bytes(path))
        if record.pop(CHECKSUM, None) not in (json_checksum(record), None):  # earlier versions wrote none
            return None
        entry, left_out = ShardEntry(**record["shard"]), tuple(record.get("left_out", ()))
        seekable = dict(record.get("seekable", {}))
        sizes = [storage.stat(job.root / name).st_size for name in (entry.file, entry.index)]
        good = record["plan"] == job.plan_key and sizes == [entry.bytes, entry.index_bytes]
        whole = entry.samples + len(left_out) == len(plan.members)
    except (*MISSING, ValueError, KeyError, TypeError, AttributeError):
        return None
    as_planned = entry.bytes == plan.bytes or job.resized or bool(left_out)
    named = (entry.file, entry.index) == job.file_names(plan)
    return Finished(entry, left_out, seekable) if good and as_planned and whole and named else None


def write_record(job: Job, plan: ShardPlan, found: Finished) -> None:
    """Write the record of a finished shard; raises OSError and StorageError."""
    left_out = {"left_out": found.left_out} if found.left_out else {}
    seekable = {"seekable": found.seekable} if job.seekable else {}
    record: dict[str, Any] = {"plan": job.plan_key, "shard": asdict(found.entry), **left_out, **seekable}
    record[CHECKSUM] = json_checksum(record)
    storage.write_file(job.record_path(plan), (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
