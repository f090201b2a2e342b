"""Pictures to look at: a folder of them, a zip, a prepared dataset, or the sample set.

In a folder or a zip, a picture's class is the folder that it lies in: `val/CLASS/...` where there are splits, else
`CLASS/...`. Pictures without such a folder have no class. A picture that cannot be read is no error here: it is named
when all have been looked at.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.data.loader import Read
from trainers.exits import Exit, ExitError, UserError
from trainers.prepare.archives import GZIP, open_object
from trainers.prepare.archives.folder import Folder, FolderSource
from trainers.prepare.archives.members import Container, Member
from trainers.prepare.archives.tar import looks_like_tar
from trainers.prepare.archives.zip import Archive
from trainers.prepare.sample import ensure_sample
from trainers.prepare.settings import Source
from trainers.prepare.sources.base import Traffic
from trainers.shards import manifest as manifests
from trainers.shards.manifest import SPLITS
from trainers.shards.reader import open_split

# Files that people mean as pictures; those of formats that are not decoded are named as such
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif")
_IN_SPLIT = re.compile(r"(?:^|/)(train|val)/(?:([^/]+)/)?", re.IGNORECASE)


@dataclass(frozen=True)
class Unreadable:
    """In the place of a picture's content: why there is none."""

    why: str


@dataclass(frozen=True)
class Pictures:
    """Pictures by number: `read` gives their encoded bytes, `labels` their classes as numbers into `keys`."""

    where: str  # for people
    count: int
    name: Callable[[int], str]
    read: Read
    labels: NDArray[np.int64] | None
    keys: Sequence[str] = ()  # classes as folders or the archive name them
    class_names: Sequence[str] = ()  # the same for people
    options: dict[str, Any] = field(default_factory=dict)  # for the loader


def open_pictures(path: str, split: str, known: Collection[str]) -> Pictures:
    """Open pictures; `split` is train, val, or empty (val where there are splits); raises UserError.

    `known` are the model's classes, by which a zip's folders of classes are told from those around them.
    """
    root = ensure_sample() if path == "sample" else Path(path)
    if not root.exists():
        raise UserError(f"--data {path}: no such folder or file; give a folder of pictures, a zip, a prepared dataset")
    if root.is_dir() and manifests.exists(root):
        return _shards(root, split or "val")
    return _members(_container(root), split, known)


def _shards(root: Path, split: str) -> Pictures:
    found = open_split(root, split)
    return Pictures(
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
    source = open_object(Source(kind="path", path=str(path)), Traffic())
    if isinstance(source, FolderSource):
        return Folder(source)
    head = source.read_range(0, min(source.size, 512))
    if bytes(head[:2]) == GZIP or looks_like_tar(head):
        raise UserError(f"--data {path} is a tar; unpack it, or make a zip of it (trainers.prepare reads tars)")
    return Archive(source)


def _members(container: Container, split: str, known: Collection[str]) -> Pictures:
    label = container.source.label
    members = sorted((member for member in container.members() if _is_picture(member.name)), key=lambda one: one.name)
    if not members:
        raise UserError(f"--data {label} holds no pictures ({', '.join(ENDINGS)}); check the path")
    members, folders = _of_split(members, split, label) or ([*members], _first_folders(members, known))
    keys = sorted(set(folders) - {""})
    index = {key: number for number, key in enumerate(keys)}
    # One picture without a class, and they are what somebody wants to have classified
    labels = None if "" in folders else np.array([index[key] for key in folders], dtype=np.int64)
    return Pictures(
        where=f"{split} of {label}" if split else label,
        count=len(members),
        name=lambda i: members[i].name,
        read=lambda ids: [_content(container, members[int(i)]) for i in ids],
        labels=labels,
        keys=keys,
        class_names=keys,
    )


def _is_picture(name: str) -> bool:
    """Whether a file's name is a picture's, and neither it nor a folder above is hidden."""
    parts = name.split("/")
    return name.lower().endswith(ENDINGS) and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _of_split(members: list[Member], split: str, label: str) -> tuple[list[Member], list[str]] | None:
    """The pictures of a split and their class folders; None where the folders have no splits and none was asked for."""
    found = [(member, _IN_SPLIT.search(member.name)) for member in members]
    there = {match[1].lower() for _, match in found if match}
    wanted = split or ("val" if "val" in there else "")
    if not wanted:
        return None
    if wanted not in there:
        have = f"only {', '.join(sorted(there))}" if there else f"no folder of a split ({' or '.join(SPLITS)})"
        raise UserError(f"--split {wanted}: {label} has {have}; leave --split out to take all pictures")
    chosen = [(member, match[2] or "") for member, match in found if match and match[1].lower() == wanted]
    return [member for member, _ in chosen], [folder for _, folder in chosen]


def _first_folders(members: list[Member], known: Collection[str]) -> list[str]:
    """The first folder of each picture, below folders that all have in common; empty where it has none."""
    paths = [member.name.split("/")[:-1] for member in members]
    depth = 0
    while (
        all(len(path) > depth for path in paths)
        and len({path[depth] for path in paths}) == 1
        and paths[0][depth] not in known
        and any(len(path) > depth + 1 for path in paths)
    ):
        depth += 1
    return [path[depth] if len(path) > depth else "" for path in paths]


def _content(container: Container, member: Member) -> bytes | Unreadable:
    try:
        return container.read(member)
    except UserError as error:
        return Unreadable(str(error))
    except ExitError as error:
        if error.code != Exit.FAILED:  # storage that does not answer
            raise
        return Unreadable(str(error))
