"""A folder per class without splits, below any common folder: `CLASS/*`. A part of each class becomes val.

Each image has a lot, drawn by the seed and its name in its class; those with the lowest lots become val. So a class's
split does not depend on other classes, nor on the order of the images or the folders around them, and an image that
is added moves at most one other of its class.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from trainyard.core.exits import UserError
from trainyard.prepare.class_names import ClassEntry
from trainyard.prepare.layouts.base import (
    SPLIT_NAMES,
    TESTS,
    UNSURE,
    MemberPlace,
    OutOfPlaceError,
    check_places,
    folders_above,
    lot,
    number_classes,
    only_in_val,
)

_SPLITS = SPLIT_NAMES.keys() | TESTS
_SURE = _SPLITS - UNSURE  # one of UNSURE alone may be a folder around the classes
# The word of a split in a folder's name: `seg_train`, `train2017`, `training_set`, `testset`, `TestImages`
_WORD = re.compile(r"(?<![a-z])(train(?:ing)?|val(?:id(?:ation)?)?|test(?:ing)?)(?=(?:set|data|images?)?(?![a-z]))")
_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
_WORD_ALONE = "*"


class Folders:
    """A class is the folder that an image lies in; a class's index is its position in sorted order."""

    texts: frozenset[str] = frozenset()
    learns_first = False
    loose = True
    absent: Collection[str] = ()

    def __init__(self, val_fraction: float, seed: int) -> None:
        self.drawn = val_fraction
        self._seed = seed
        self.places: set[tuple[str, str]] = set()

    def learn(self, name: str, text: bytes, label: str) -> None:
        """No text is needed."""

    def place(self, name: str) -> MemberPlace | None:
        """Key each image by its folder, and draw its lot; folders of splits are another layout's.

        A class may be called `train`: what holds folders is a split.
        """
        around, _, last = name.rpartition("/")
        root, _, klass = around.rpartition("/")
        if not klass:
            raise OutOfPlaceError(
                "it lies in no folder, and a folder is a class; layout 'csv' reads classes from a file"
            )
        if split := next((part for part in root.split("/") if part.lower() in _SURE), ""):
            raise OutOfPlaceError(f"{split}/ looks like a split with classes in it: that is layout 'imagefolder'")
        drawn = int.from_bytes(lot(f"{klass}/{last}", self._seed, size=8), "little")
        return MemberPlace(0, klass, root, klass, drawn)

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Give the sorted folders numbers."""
        classes = {*train, *val}
        if classes and {klass.lower() for klass in classes} <= _SPLITS:
            raise UserError(
                f"{label} has no folders but {', '.join(sorted(classes))}, which look like splits without classes; "
                "give each class a folder, or rename these if they are classes"
            )
        _refuse_splits({root for root, _ in self.places}, classes, label)
        places: dict[str, set[tuple[str, str]]] = {}
        for root, klass in self.places:
            places.setdefault(klass, set()).add((root, klass))
        for klass in sorted(places):
            check_places(places[klass], label, f"class {klass!r}")
        return number_classes(train, val, lambda klass: f"{label} has {only_in_val(klass, train)}")


def _refuse_splits(roots: Iterable[str], classes: Iterable[str], label: str) -> None:
    """Raise UserError where folders are called alike but for train and val or test: `seg_train/cat`, `train2017/1.jpg`.

    Images of a split's classes would become one class with those of another, or each split a class.
    """
    if flat := next((both for both in _splits_among(classes) if both.alike != _WORD_ALONE), None):
        raise UserError(
            f"{label} has {_listed(flat)}, which look like splits without classes; give each class a folder, or rename "
            "these if they are classes"
        )
    around = {folder for root in roots for folder in (*folders_above(root), root)}
    for both in _splits_among(around):
        skip = ", ".join(f"'{folder}/*'" for folder in sorted(both.others))
        raise UserError(
            f"{label} has {_listed(both)}, which look like splits with classes in them: leave out what is not train by "
            f"'skip': {skip}, and val is drawn from the other; or call them train and val, and take layout "
            "'imagefolder'"
        )


class _Splits(NamedTuple):
    """Folders that are called alike but for the word of a split."""

    alike: str  # what they are called, with a star for that word
    train: set[str]
    others: set[str]


def _splits_among(folders: Iterable[str]) -> Iterator[_Splits]:
    """Yield the folders of a train split with those of its others, by the last parts of their names."""
    found: dict[str, _Splits] = {}
    for folder in sorted(folders):
        name = _CASE.sub("_", folder.rpartition("/")[2]).lower()
        words = _WORD.findall(name)
        if len(words) == 1:
            alike = _WORD.sub(_WORD_ALONE, name)
            _, train, others = found.setdefault(alike, _Splits(alike, set(), set()))
            above = folders_above(folder)
            if train.isdisjoint(above) and others.isdisjoint(above):
                (train if words[0].startswith("train") else others).add(folder)
    yield from (both for both in found.values() if both.train and both.others)


def _listed(both: _Splits) -> str:
    return " and ".join(sorted(both.train | both.others))
