"""A layout: which split and class the name of an archive's member means; and what several layouts share."""

import difflib
import hashlib
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from trainyard.core.exits import UserError
from trainyard.prepare.class_names import ClassEntry
from trainyard.prepare.progress import say

# What splits are called, and a split's position in SPLITS
SPLIT_NAMES = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1}
TESTS = {"test", "testing"}
UNSURE = {"training", "testing"}  # folders of splits only where no other one around the file is called as one
_SURE = {name: split for name, split in SPLIT_NAMES.items() if name not in UNSURE}
LEFT_OUT = -1  # in place of a label: images of val whose class is none of train's


class OutOfPlaceError(Exception):
    """A member has a name that the layout does not know; the message, if there is one, says what it looks like."""


class MemberPlace(NamedTuple):
    """The meaning of a name in a layout."""

    split: int  # as a position in SPLITS
    key: str
    # A folder of the layout, and the folder in which that lies
    root: str = ""
    below: str = ""
    # Where the layout leaves splits to be drawn: its lot, 8 bytes as a number
    lot: int | None = None
    # Where a class may have folders in its own: that one and the first of them, in which it lies
    inner: str = ""


class Layout(Protocol):
    """Maps the names in one kind of archive to splits and classes; it sees no hidden and no service files."""

    # The members that the layout needs the text of, by the last part of the name or by more of its end
    texts: frozenset[str]
    # Whether it needs them before it can place anything; they are then read in a separate pass
    learns_first: bool
    # Whether any folder counts as a class, so that one which holds no image is none
    loose: bool
    # The part of each class that becomes val by the lots of its images; 0: `place` says the split
    drawn: float
    # The folders in which images were found
    places: set[tuple[str, str]]
    # Classes that the archive names and has no training images of, though `skip` does not name those; after `resolve`
    absent: Collection[str]

    def learn(self, name: str, text: bytes, label: str) -> None:
        """Take a text before anything is placed."""
        ...

    def place(self, name: str) -> MemberPlace | None:
        """Say what an image of this name would be, or None when it has no label.

        Any other name raises OutOfPlaceError: no image may be lost because its name is slightly wrong.
        """
        ...

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Turn the keys seen in each split into classes and a label per key, or LEFT_OUT.

        `skipped` are keys of members left out on purpose; `label` names the archive in messages.
        """
        ...


def check_places(places: Iterable[tuple[str, str]], label: str, what: str) -> None:
    """Raise UserError where `what` lies in a folder and again in one below: a data set that was copied into itself.

    Where it lies in several folders beside each other, that is said.
    """
    found: dict[str, set[str]] = {}
    for root, below in places:
        found.setdefault(root, set()).add(below)
    roots = sorted(found)
    if twice := find_nested(roots):
        inner, outer = twice
        patterns = ", ".join(f"'{_join(inner, below)}/*'" for below in sorted(found[inner]))
        raise UserError(
            f"{label} holds {what} twice, one in the other: in {inner} and in {outer or 'the top folder'}; remove one "
            f"of them, or leave it out by 'skip': {patterns}"
        )
    if len(roots) > 1:
        say(f"{what} lies in {len(roots):,} folders of {label}, {roots[0] or 'the top'} and {roots[1]}: taken as one")


def find_nested(folders: Collection[str]) -> tuple[str, str] | None:
    """Return a folder that lies in another of them, and that one; None where none does."""
    pairs = ((folder, outer) for folder in sorted(folders) for outer in folders_above(folder) if outer in folders)
    return next(pairs, None)


class SplitFolders(NamedTuple):
    """The split of a file, as its folders say."""

    split: int  # as a position in SPLITS
    klass: str  # the class's folder, or nothing
    folder: str  # of the split
    root: str  # the folders around that


def split_of(name: str) -> SplitFolders | None:
    """Return a file's split, by the first folder that is called as one; `training` is one where there is no other.

    Of `train/train/cat/1.jpg` the first `train` is around the layout; in `train/train/1.jpg` the second is a class.
    """
    parts = name.split("/")
    tests = not TESTS.isdisjoint(part.lower() for part in parts[:-1])
    return _first_split(parts, _SURE) or (None if tests else _first_split(parts, SPLIT_NAMES))


def _first_split(parts: list[str], folders: Mapping[str, int]) -> SplitFolders | None:
    for at, part in enumerate(parts[:-1]):
        split = folders.get(part.lower())
        if split is None or (at + 3 < len(parts) and parts[at + 1].lower() in folders):
            continue
        return SplitFolders(split, parts[at + 1] if at + 2 < len(parts) else "", part, "/".join(parts[:at]))
    return None


def number_classes(
    train: list[str], val: list[str], strange: Callable[[str], str]
) -> tuple[list[ClassEntry], list[int], list[int]]:
    """Return what `resolve` returns where the keys are the classes: each one's index is its position in sorted order.

    Raises UserError for a class that is in val alone, with the message that `strange` makes of its name.
    """
    names = sorted(train)
    index = {name: i for i, name in enumerate(names)}
    if alone := set(val) - set(index):
        raise UserError(strange(min(alone)))
    return [ClassEntry(name, name) for name in names], [index[key] for key in train], [index[key] for key in val]


def only_in_val(klass: str, train: Iterable[str]) -> str:
    """Words about a class that train lacks, and about one that train has and that looks like it."""
    near = nearest(klass, train)
    return f"class {klass!r} in val but not in train" + (f", which has {near!r}" if near else "")


def nearest(klass: str, known: Iterable[str]) -> str:
    """Find the name that differs least: in case, spaces and dots alone, or in few letters; none where none is near."""
    listed = sorted(known)
    alike = [name for name in listed if _bare(name) == _bare(klass)] or difflib.get_close_matches(klass, listed, n=1)
    return alike[0] if alike else ""


def lot(name: str, seed: int, size: int = hashlib.blake2b.MAX_DIGEST_SIZE) -> bytes:
    """Draw `size` bytes for an image, by its name and the seed alone."""
    key = seed.to_bytes(8, "little")
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), key=key, digest_size=size).digest()


def _bare(name: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", name).casefold()))


def folders_above(folder: str) -> list[str]:
    """All folders around a folder, from the top one, whose name is empty."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def _join(folder: str, below: str) -> str:
    return f"{folder}/{below}" if folder else below
