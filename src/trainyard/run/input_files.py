"""The files that a run reads from storage: a failure is final only while all of them are as they were then.

A dataset, weights or a checkpoint may be repaired without a change of the settings, and then a retry is no retry of the
same.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from trainyard.config.sections.data import DataSettings
from trainyard.config.sections.learning import ModelSettings
from trainyard.config.sections.running import RunSettings
from trainyard.core.files import json_checksum
from trainyard.models import weights

FEW = 16  # files of a folder that are opened unasked


def paths(run: RunSettings, resume: str, data: DataSettings, model: ModelSettings) -> list[Path]:
    """Return the files and folders that a run reads, as far as its settings name them; raises UserError."""
    found = [Path(run.dir) / "checkpoints"]
    if resume not in ("auto", "never"):
        found.append(Path(resume))
    if not data.dataset and data.dir not in ("sample", "synthetic"):
        found += [Path(data.dir, part) for part in ("", "train", "val")]
    if model.pretrained:
        path = weights.folder_of(model, data) if weights.is_fetched(model.pretrained) else Path(model.pretrained)
        found += [path, path.parent / weights.FILE, path.parent / weights.SUMS]
    return found


def state(found: Iterable[Path], message: str) -> str:
    """Return a hash of names, sizes and times, of these files and of those in these folders. Never raises.

    Of a folder with more than FEW files only those are looked at that the failure's message names, up to a dot, as a
    shard and its index have that in common: every process of a run asks this, of a dataset of thousands of shards.
    """
    return json_checksum([[str(path), _look(path), _list(path, message)] for path in found])


def _list(folder: Path, message: str) -> list[tuple[str, list[int]]]:
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    few = len(paths) <= FEW
    return [(path.name, _look(path) if few or path.name.partition(".")[0] in message else []) for path in paths]


def _look(path: Path) -> list[int]:
    """Return size and times of a file; nothing for a folder, and for what cannot be opened."""
    try:
        # An open asks an NFS server; a stat may be answered by the node's cache
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            seen = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return []
    return [] if stat.S_ISDIR(seen.st_mode) else [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]
