"""Which members of an archive become samples, with which labels. Held in arrays, about 60 bytes an image.

A layout says which class or key each name stands for; see `imagenet`, `imagefolder` and `table`.
"""

from array import array
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.core.exits import UserError
from trainyard.prepare.archives.members import BARE, CHECKED, LARGEST_HEADER, LOCAL_HEADER_SIZE, Container, Member
from trainyard.prepare.class_names import ClassEntry, Naming, name_classes
from trainyard.prepare.layouts.base import LEFT_OUT, Layout, MemberPlace
from trainyard.prepare.listing import Entry, Listing
from trainyard.prepare.names import OF_OTHER_CLASSES, normalise_unicode
from trainyard.prepare.progress import say
from trainyard.prepare.selection import Selection, Skip
from trainyard.shards.manifest import SPLITS, WITHOUT_TRAINING

MEMBER_DTYPE = np.dtype(
    [(name, "<u8") for name in ("offset", "name_hash")]
    + [(name, "<u4") for name in ("span", "stored", "size", "crc32", "label")]
    + [("method", "u1")]
)


@dataclass(frozen=True)
class Catalogue:
    """The samples of an archive in the order in which they lie there, and the classes.

    `ignored` counts the files that are no data, by why they are none and by kind; and it names, with 0, the classes
    without training images.
    """

    classes: list[ClassEntry]
    splits: Mapping[str, NDArray[Any]]
    fingerprint: str
    ignored: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass
class _Columns:
    """Members collected so far, and their keys by number."""

    offset: "array[int]" = field(default_factory=lambda: array("Q"))
    stored: "array[int]" = field(default_factory=lambda: array("I"))
    size: "array[int]" = field(default_factory=lambda: array("I"))
    crc32: "array[int]" = field(default_factory=lambda: array("I"))
    method: "array[int]" = field(default_factory=lambda: array("B"))
    key: "array[int]" = field(default_factory=lambda: array("I"))
    name_hash: "array[int]" = field(default_factory=lambda: array("Q"))
    identity: "array[int]" = field(default_factory=lambda: array("Q"))
    lot: "array[int]" = field(default_factory=lambda: array("Q"))  # empty where the layout says the splits
    keys: dict[str, int] = field(default_factory=dict)

    def add(self, entry: Entry, place: MemberPlace) -> None:
        member = entry.member
        self.offset.append(member.offset)
        self.stored.append(member.stored)
        self.size.append(member.size)
        self.crc32.append(member.crc32)
        self.method.append(member.method)
        self.key.append(self.keys.setdefault(place.key, len(self.keys)))
        self.name_hash.append(member.name_hash)
        self.identity.append(entry.identity)
        if place.lot is not None:
            self.lot.append(place.lot)

    def part(self, chosen: NDArray[np.bool_]) -> "_Columns":
        """Return the chosen members, with the keys of all."""
        names = [one.name for one in fields(self) if one.name != "keys"]
        arrays = {name: getattr(self, name) for name in names}
        kept = {
            name: array(one.typecode, np.asarray(one)[chosen].tobytes()) if one else one for name, one in arrays.items()
        }
        return _Columns(**kept, keys=self.keys)


def read_catalogue(
    archive: Container, layout: Layout, skip: frozenset[str], names: Naming | None = None, converts: bool = False
) -> Catalogue:
    """Go through the archive's directory once and decide what becomes a sample; `converts`: other formats do, too."""
    names = names or Naming("", {})
    listing = Listing(archive)
    starts = array("Q")
    texts: dict[str, Member] = {}
    name_file = normalise_unicode(names.file)
    wanted = layout.texts | ({name_file} if name_file else set())
    if layout.learns_first:
        for key, member in _find_texts(listing, layout.texts).items():
            layout.learn(member.name, archive.read(member), listing.label)
            texts[key] = member
    columns = (_Columns(), _Columns())
    selection = Selection(
        listing, layout, Skip(skip), lambda entry, place: columns[place.split].add(entry, place), converts
    )
    for entry in listing.entries():
        starts.append(entry.member.offset)
        if not entry.noise and (key := _text_key(entry.member.name, wanted)):
            _note_text(texts, key, entry.member, archive)
        else:
            selection.take(entry)
    selection.finish({key for column in columns for key in column.keys})
    for column in columns:
        _refuse_duplicates(listing, column)
    if layout.drawn and columns[0].key:
        columns = _draw(columns[0], layout.drawn)
    contents = {key: archive.read(member) for key, member in texts.items()}
    train_keys, val_keys = (list(column.keys) for column in columns)
    classes, *of_keys = layout.resolve(train_keys, val_keys, selection.skipped, contents, listing.label)
    labels = [np.asarray(of_key, np.int64) for of_key in of_keys]
    ignored = selection.count_ignored()
    seen, columns = len(columns[1].key), (columns[0], _labelled(columns[1], labels[1]))
    if left_out := seen - len(columns[1].key):
        ignored[OF_OTHER_CLASSES] = {"image": left_out}
        say(f"{listing.label}: {OF_OTHER_CLASSES}: {left_out:,}")
    if layout.absent:
        ignored[WITHOUT_TRAINING] = dict.fromkeys(sorted(layout.absent), 0)
    for split, column in zip(SPLITS, columns, strict=True):
        if not column.offset:
            raise UserError(
                f"{listing.label} holds no images for '{split}' in the layout that was set; check 'layout' and the "
                "archive"
            )
    classes = name_classes(classes, names, contents.get(name_file), listing.label)
    borders = np.append(np.unique(np.frombuffer(starts, np.uint64)), np.uint64(archive.members_end))
    splits = {
        split: _assemble(archive, column, of_key.astype(np.uint32), borders)
        for split, column, of_key in zip(SPLITS, columns, labels, strict=True)
    }
    return Catalogue(classes, splits, selection.fingerprint(), ignored)


def _labelled(column: _Columns, of_key: NDArray[np.int64]) -> _Columns:
    """Return the members whose key has a label."""
    return column.part(of_key[np.asarray(column.key)] != LEFT_OUT) if (of_key == LEFT_OUT).any() else column


def _draw(column: _Columns, fraction: float) -> tuple[_Columns, _Columns]:
    """Divide members into train and val: of each class the fraction with the lowest lots, at least one, never all."""
    keys, lots, names = (np.asarray(one) for one in (column.key, column.lot, column.identity))
    order = np.lexsort((names, lots, keys))
    counts = np.bincount(keys)
    wanted = np.minimum(np.maximum(np.rint(fraction * counts), 1), counts - 1)
    firsts = np.cumsum(counts) - counts
    val = np.zeros(len(keys), bool)
    val[order] = np.arange(len(keys)) - firsts[keys[order]] < wanted[keys[order]]
    return column.part(~val), column.part(val)


def _text_key(name: str, wanted: Set[str]) -> str:
    """Return which of the wanted texts this member is, or nothing."""
    # Most names are excluded here, by their last part
    return next((key for key in wanted if name.endswith(key) and (name == key or name[-len(key) - 1] == "/")), "")


def _note_text(texts: dict[str, Member], key: str, member: Member, archive: Container) -> None:
    """Keep a text's member; raises UserError for two of one name."""
    if texts.setdefault(key, member).offset != member.offset:
        raise UserError(
            f"{archive.source.label} holds both {texts[key].name} and {member.name}; name one of them by more of its "
            "path, or repair the archive"
        )


def _find_texts(listing: Listing, wanted: Set[str]) -> dict[str, Member]:
    """Find the texts in a separate pass."""
    found: dict[str, Member] = {}
    for entry in listing.entries():
        if not entry.noise and (key := _text_key(entry.member.name, wanted)):
            _note_text(found, key, entry.member, listing.container)
    if lacking := wanted - found.keys():
        raise UserError(f"{listing.label} has no {min(lacking)}, which the layout needs; check its settings")
    return found


def _refuse_duplicates(listing: Listing, column: _Columns) -> None:
    """Raise UserError when a name appears twice."""
    names = np.frombuffer(column.identity, np.uint64)
    unique, counts = np.unique(names, return_counts=True)
    if len(unique) == len(names):
        return
    twice = int(unique[np.argmax(counts > 1)])
    name = next(entry.member.name for entry in listing.entries() if entry.identity == twice)
    raise UserError(f"{name} appears twice in {listing.label}; repair the archive, or name it under 'skip'")


def _assemble(
    archive: Container, column: _Columns, labels: NDArray[np.uint32], borders: NDArray[np.uint64]
) -> NDArray[Any]:
    """Sort a split by place in the archive, and find how many bytes each member takes there, its own header included.

    The directory does not say how long that header is; where the next member starts does.
    """
    table = np.empty(len(column.offset), MEMBER_DTYPE)
    order = np.argsort(np.asarray(column.offset), kind="stable")
    table["label"] = labels[np.asarray(column.key)][order]
    for name in ("offset", "name_hash", "stored", "size", "crc32", "method"):
        table[name] = np.asarray(getattr(column, name))[order]
        # With a million members each of these matters
        setattr(column, name, array("B"))
    column.identity = array("Q")
    del order
    following = borders[np.searchsorted(borders, table["offset"], side="right")]
    distance = following - table["offset"]
    bare = np.isin(table["method"], (BARE, CHECKED))
    least = table["stored"].astype(np.uint64) + np.where(bare, 0, LOCAL_HEADER_SIZE).astype(np.uint64)
    if bool((distance < least).any()):
        at = int(table["offset"][np.argmax(distance < least)])
        raise UserError(
            f"{archive.source.label} is not a sound archive: its members overlap at byte {at:,}; get it again"
        )
    most = table["stored"].astype(np.uint64) + np.where(bare, 0, LARGEST_HEADER).astype(np.uint64)
    table["span"] = np.minimum(distance, most)
    return table
