"""Keeps what each sample is called in the source (shards/sample_names.py), when all shards are made."""

import gzip
import io
import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trainyard.core.storage import storage
from trainyard.prepare.archives.members import Container
from trainyard.prepare.job import Finished
from trainyard.prepare.names import shown
from trainyard.prepare.plan import DatasetPlan, ShardPlan
from trainyard.shards.sample_names import file_of

TOGETHER = 1 << 18  # names that are held at a time, about 25 MB of them


def write_members(root: Path, container: Container, plan: DatasetPlan, found: list[Finished]) -> None:
    """Write the names of each split's samples; raises OSError and StorageError."""
    left_out = {shard.stem: set(record.left_out) for shard, record in zip(plan.shards, found, strict=True)}
    for split in dict.fromkeys(shard.split for shard in plan.shards):
        buffer = io.BytesIO()
        with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
            for shards in _groups(plan.of(split)):
                for shard, names in zip(shards, _names(container, shards), strict=True):
                    kept = (name for name in names if name not in left_out[shard.stem])
                    file.write("".join(json.dumps(name) + "\n" for name in kept).encode())
        storage.write_file(file_of(root, split), buffer.getvalue())


def _groups(shards: list[ShardPlan]) -> Iterator[list[ShardPlan]]:
    """Neighbours of which few enough samples are looked up in one pass through the source's listing."""
    group: list[ShardPlan] = []
    for shard in shards:
        if group and sum(len(one.members) for one in group) + len(shard.members) > TOGETHER:
            yield group
            group = []
        group.append(shard)
    if group:
        yield group


def _names(container: Container, shards: list[ShardPlan]) -> list[list[str]]:
    """Return the names of the shards' samples in order, found by their offsets in the source."""
    offsets = np.concatenate([shard.members["offset"] for shard in shards])
    order = np.argsort(offsets, kind="stable")
    wanted = array("Q", offsets[order].tobytes())
    names = [""] * len(wanted)
    for member in container.members():
        at = bisect_left(wanted, member.offset)
        # a folder's empty files lie where the next file does
        if at < len(wanted) and wanted[at] == member.offset and member.size:
            names[int(order[at])] = shown(member.name)
    ends = np.cumsum([len(shard.members) for shard in shards]).tolist()
    return [names[end - len(shard.members) : end] for shard, end in zip(shards, ends, strict=True)]
