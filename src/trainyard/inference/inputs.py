"""Images to look at: a folder of them, a zip, a prepared dataset, or the sample set.

In a folder or a zip, an image's class is the folder that it lies in: `val/CLASS/...` where there are splits, else
`CLASS/...`. Images without such a folder have no class. What is an image, and what no data, is decided as in a
preparation (prepare/listing.py). An image that cannot be read is no error here: it is named when all have been seen.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.data.loader import Read
from trainyard.prepare.archives import open_object
from trainyard.prepare.archives.folder import Folder, FolderSource
from trainyard.prepare.archives.kinds import packing, unread
from trainyard.prepare.archives.members import Container, Member
from trainyard.prepare.archives.tar import looks_like_tar
from trainyard.prepare.archives.zip import Archive
from trainyard.prepare.layouts.base import SplitFolders, find_nested, split_of
from trainyard.prepare.listing import Entry, Foreign, Listing
from trainyard.prepare.names import FORMATS, IMAGES, is_image, is_utf8, normalise_unicode, shown
from trainyard.prepare.sample import ensure_sample
from trainyard.prepare.settings import SourceSettings
from trainyard.prepare.sources.base import Traffic
from trainyard.shards import manifest as manifests
from trainyard.shards.manifest import SPLITS
from trainyard.shards.reader import open_split


@dataclass(frozen=True)
class Unreadable:
    """In the place of an image's content: why there is none."""

    why: str


@dataclass(frozen=True)
class Images:
    """Images by number: `read` gives their encoded bytes, `labels` their classes as numbers into `keys`."""

    where: str  # for people
    count: int
    name: Callable[[int], str]
    read: Read
    labels: NDArray[np.int64] | None
    keys: Sequence[str] = ()  # classes as folders or the archive name them
    class_names: Sequence[str] = ()  # the same for people
    remarks: Sequence[str] = ()  # about what was left out
    unclear: str = ""  # why classes cannot be told apart
    options: dict[str, Any] = field(default_factory=dict)  # for the loader


def open_images(path: str, split: str, known: Collection[str]) -> Images:
    """Open images; `split` is train, val, or empty (val where there are splits); raises UserError.

    `known` are the model's classes, by which a zip's folders of classes are told from those around them.
    """
    root = ensure_sample() if path == "sample" else Path(path)
    if not root.exists():
        raise UserError(f"--data {path}: no such folder or file; give a folder of images, a zip, a prepared dataset")
    if root.is_dir() and manifests.exists(root):
        return _shards(root, split or "val")
    return _members(_container(root), split, known)


def _shards(root: Path, split: str) -> Images:
    found = open_split(root, split)
    return Images(
        where=f"{split} of {root}",
        count=len(found),
        name=lambda i: f"sample {i} of {split}",  # wherever it is mounted
        read=found.read_together,
        labels=found.labels,
        keys=found.class_keys,
        class_names=found.class_names,
        options={"neighbours": found.neighbours},
    )


def _container(path: Path) -> Container:
    source = open_object(SourceSettings(kind="path", path=str(path)), Traffic())
    if isinstance(source, FolderSource):
        return Folder(source)
    head = source.read_range(0, min(source.size, 512))
    if looks_like_tar(head) or packing(head):
        raise UserError(f"--data {path} is a tar; unpack it, or make a zip of it (`trainyard prepare` reads tars)")
    if what := unread(head):
        raise UserError(f"--data {path} {what}")
    return Archive(source)


def _members(container: Container, split: str, known: Collection[str]) -> Images:
    label = container.source.label
    listing = Listing(container)
    entries = sorted(listing.images(), key=lambda one: one.raw)
    remarks = list(listing.remarks())
    # A link without a usual ending may have been an image where images of a class lie
    class_folders = {_folder(entry.member.name) for entry in entries} - {""}
    kinds = {name: is_image(name) for name in listing.links}
    if lost := [name for name, kind in kinds.items() if kind or (kind is None and _folder(name) in class_folders)]:
        raise UserError(
            f"--data {label}: {len(lost):,} links to images that are not there (first {shown(lost[0])}); fetch them "
            "(git annex get, dvc pull), or remove the links"
        )
    if listing.links:
        remarks.append(f"links to nothing left out: {len(listing.links):,}")
    if not entries:
        seen = "".join(f"; {remark}" for remark in remarks)
        raise UserError(f"--data {label} holds no images ({', '.join((*IMAGES, *FORMATS))}){seen}; check the path")
    entries, folders = _of_split(entries, split, label, known) or (entries, _first_folders(entries, known))
    members = [entry.member for entry in entries]
    keys = sorted(set(folders) - {""})
    foreign = Foreign(container)
    for entry, folder in zip(entries, folders, strict=True):
        if not is_utf8(folder):
            foreign.note(entry.raw)
    index = {key: number for number, key in enumerate(keys)}
    # One image without a class, and they are what somebody wants to have classified
    labels = None if "" in folders else np.array([index[key] for key in folders], dtype=np.int64)
    return Images(
        where=f"{split} of {label}" if split else label,
        count=len(members),
        name=lambda i: shown(entries[i].raw),
        read=lambda ids: [_content(container, members[int(i)]) for i in ids],
        labels=labels,
        keys=keys,
        class_names=keys,
        remarks=remarks,
        unclear=foreign.refusal(),
    )


def _of_split(
    entries: list[Entry], split: str, label: str, known: Collection[str]
) -> tuple[list[Entry], list[str]] | None:
    """Find the images of a split and their class folders; None where there are no splits and none was asked for."""
    found = [(entry, place) for entry in entries if (place := split_of(entry.member.name))]
    if not split and _are_classes(found, len(entries), known):
        return None
    there = {SPLITS[place.split] for _, place in found}
    wanted = split or ("val" if "val" in there else "")
    if not wanted:
        return None
    if wanted not in there:
        have = f"only {', '.join(sorted(there))}" if there else f"no folder of a split ({' or '.join(SPLITS)})"
        raise UserError(f"--split {wanted}: {label} has {have}; leave --split out to take all images")
    chosen = [(entry, place) for entry, place in found if SPLITS[place.split] == wanted]
    if twice := find_nested({place.root for _, place in chosen}):
        raise UserError(
            f"--data {label} holds {wanted} twice, one in the other: in {twice[0]} and in "
            f"{twice[1] or 'the top folder'}; give the path of one"
        )
    return [entry for entry, _ in chosen], [place.klass for _, place in chosen]


def _are_classes(found: list[tuple[Entry, SplitFolders]], count: int, known: Collection[str]) -> bool:
    """Whether folders called as splits are classes: images lie directly in them, beside other classes' folders."""
    flat = not any(place.klass for _, place in found)
    return flat and (len(found) < count or {place.folder for _, place in found} <= set(known))


def _first_folders(entries: list[Entry], known: Collection[str]) -> list[str]:
    """Return the first folder of each image, below folders that all have in common; empty where it has none."""
    paths = [entry.member.name.split("/")[:-1] for entry in entries]
    depth = 0
    while (
        all(len(path) > depth for path in paths)
        and len({path[depth] for path in paths}) == 1
        and paths[0][depth] not in known
        and any(len(path) > depth + 1 for path in paths)
    ):
        depth += 1
    return [path[depth] if len(path) > depth else "" for path in paths]


def _folder(name: str) -> str:
    return normalise_unicode(name).rpartition("/")[0]


def _content(container: Container, member: Member) -> bytes | Unreadable:
    try:
        return container.read(member)
    except UserError as error:
        return Unreadable(str(error))
    except ExitError as error:
        if error.code != Exit.FAILED:  # storage that does not answer
            raise
        return Unreadable(str(error))
