"""Compares a source on a volume with the complete folder that was prepared from it: new images are not lost unseen.

Sources of the network are not asked: a complete folder needs them no more, nor the credentials for them.
"""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np

from trainyard.core.exits import ExitError, UserError
from trainyard.prepare.archives.folder import Folder, FolderSource
from trainyard.prepare.catalogue import Catalogue, read_catalogue
from trainyard.prepare.class_names import Naming
from trainyard.prepare.layouts import layout_of
from trainyard.prepare.settings import Preparation
from trainyard.prepare.sources.base import Traffic
from trainyard.shards.manifest import Manifest
from trainyard.shards.reader import open_split

MOST_LISTED = 500_000  # samples: longer lists cost minutes on network storage
_NAMED = 5


def said_of_source(config: Preparation, manifest: Manifest) -> str:
    """Say how the source has changed since the folder was prepared, and what to do; nothing where it has not."""
    path = Path(config.source.path)
    if config.source.kind != "path":
        return ""
    try:
        changed = _folder(config, manifest) if path.is_dir() else _archive(path, manifest)
    except OSError:  # it is gone, or cannot be read: the folder is complete without it
        return ""
    if not changed:
        return ""
    name = next_name(config.out)
    return (
        f"{path} has changed since {config.out} was prepared: {changed}. The prepared folder stays as it is; to have "
        f"the changes, prepare under another name: out={config.out.with_name(name)} (on a cluster global.dataset.name: "
        f"{name})"
    )


def next_name(out: Path) -> str:
    """Return the next name that no folder beside has: trees-2 for trees, trees-3 for trees-2."""
    stem, dash, number = out.name.rpartition("-")
    base, last = (stem, int(number)) if dash and stem and number.isdecimal() else (out.name, 1)
    while out.with_name(f"{base}-{last + 1}").exists():
        last += 1
    return f"{base}-{last + 1}"


def _archive(path: Path, manifest: Manifest) -> str:
    size, before = path.stat().st_size, manifest.source.get("bytes")
    return f"it has {size:,} bytes and had {before:,}" if isinstance(before, int) and size != before else ""


def _folder(config: Preparation, manifest: Manifest) -> str:
    if sum(split.samples for split in manifest.splits.values()) > MOST_LISTED:
        return ""
    try:
        source = FolderSource(Path(config.source.path), Traffic())
        if manifest.source.get("directory_sha256") in (source.identity, _renamed(source.identity)):
            return ""
        names = Naming(config.class_file, config.class_names)
        now = read_catalogue(Folder(source), layout_of(config), frozenset(config.skip), names, config.convert != "none")
    except (UserError, ExitError) as error:
        return f"a preparation would refuse it now ({error})"
    return difference(before(config.out, manifest), counts(now), len(manifest.left_out))


def _renamed(identity: str) -> str:
    """Return the fingerprint of a folder of which names were brought into another form (selection.py)."""
    return hashlib.sha256(f"{identity} names".encode()).hexdigest()


def before(root: Path, manifest: Manifest) -> "Counter[str]":
    """Return samples of each class of a prepared folder."""
    total: Counter[str] = Counter()
    for split in manifest.splits:
        shards = open_split(root, split)
        for label, count in enumerate(np.bincount(shards.labels, minlength=manifest.classes).tolist()):
            total[shards.class_keys[label]] += count
        shards.close()
    return total


def counts(catalogue: Catalogue) -> "Counter[str]":
    """Images of each class of a source."""
    total: Counter[str] = Counter()
    for members in catalogue.splits.values():
        for label, count in enumerate(np.bincount(members["label"], minlength=len(catalogue.classes)).tolist()):
            total[catalogue.classes[label].synset] += count
    return total


def difference(before: "Counter[str]", now: "Counter[str]", left_out: int = 0) -> str:
    """Words about what has changed; `left_out` images were there before, and are in no class's count."""
    parts = []
    for what, classes in (("new", set(now) - set(before)), ("gone", set(before) - set(now))):
        if classes:
            listed = ", ".join(sorted(classes)[:_NAMED]) + (" ..." if len(classes) > _NAMED else "")
            parts.append(f"{len(classes):,} {'class is' if len(classes) == 1 else 'classes are'} {what} ({listed})")
    if more := now.total() - before.total() - left_out:
        parts.insert(0, f"{abs(more):,} {'more' if more > 0 else 'fewer'} image{'s' if abs(more) > 1 else ''}")
    return "; ".join(parts) or "as many images in the same classes, some with another name, size or time"
