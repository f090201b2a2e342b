"""Checks a prepared folder against its manifest byte by byte, and rebuilds damaged shards."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainyard.core.exits import UserError
from trainyard.core.storage import storage
from trainyard.prepare.build import Options, build
from trainyard.prepare.progress import say
from trainyard.prepare.settings import Preparation
from trainyard.shards import manifest as manifests
from trainyard.shards import sample_names
from trainyard.shards.manifest import Manifest, ShardEntry


def find_damage(root: Path, manifest: Manifest, workers: int = 4) -> dict[str, str]:
    """Hash every file; return what is wrong by the tar's name (or that of the file of classes, or of names)."""
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda shard: _damage(root, shard), shards)
        wrong = {shard.file: damage for shard, damage in zip(shards, found, strict=True) if damage}
    classes = root / manifests.CLASSES_FILE
    if not classes.is_file() or storage.hash_file(classes) != manifest.classes_sha256:
        wrong[manifests.CLASSES_FILE] = "is missing or was changed"
    for name, split in manifest.splits.items():
        if damage := sample_names.find_damage(root, name, split.samples):
            wrong[sample_names.file_of(root, name).name] = damage
    return wrong


def verify(root: Path) -> None:
    """Check everything; raises UserError naming each damaged file."""
    manifest = manifests.load(root)
    if wrong := find_damage(root, manifest):
        for name, what in sorted(wrong.items()):
            say(f"{root / name}: {what}")
        raise UserError(
            f"{len(wrong)} files of {root} are damaged, first {min(wrong)}; run `trainyard prepare "
            "repair` with the settings that it was prepared with"
        )
    for name, split in manifest.splits.items():
        counts = label_counts(root, manifest, name)
        say(
            f"{name}: {split.samples:,} samples in {len(split.shards)} shards, {counts.min():,} to {counts.max():,} "
            f"for each of {manifest.classes:,} classes; every SHA-256 is right"
        )
    if manifest.seekable is not None:
        say("; ".join(f"{count:,} images: {outcome}" for outcome, count in sorted(manifest.seekable.items())))


def label_counts(root: Path, manifest: Manifest, split: str) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Count the samples of each class of a split, from the indexes."""
    counts = np.zeros(manifest.classes, np.int64)
    for shard in manifest.splits[split].shards:
        counts += np.bincount(np.load(root / shard.index)["label"], minlength=manifest.classes)
    return counts


def repair(config: Preparation, options: Options | None = None) -> None:
    """Rebuild damaged shards, and only those. Each is replaced by a rename: who reads it meanwhile is not disturbed.

    A folder that is not complete is completed first, with shards that are finished from before.
    """
    root = config.out
    if not manifests.exists(root) and build(config, options) is None:
        return
    manifest = manifests.load(root)
    wrong = find_damage(root, manifest)
    # Version 0.1.0 made no files of names; its manifests have no checksum, and their source may be gone
    if manifest.checksum:
        missing = [path for path in (sample_names.file_of(root, name) for name in manifest.splits) if not path.exists()]
        wrong |= {path.name: "is missing" for path in missing}
    for name, what in sorted(wrong.items()):
        say(f"{root / name}: {what}; it is rebuilt")
    build(config, replace(options or Options(), rebuild=frozenset(wrong)))


def _damage(root: Path, shard: ShardEntry) -> str:
    for name, digest in ((shard.file, shard.sha256), (shard.index, shard.index_sha256)):
        try:
            if storage.hash_file(root / name) != digest:
                return f"{Path(name).name} does not have its SHA-256"
        except OSError as error:
            return f"{Path(name).name} cannot be read: {error.strerror}"
    return ""
