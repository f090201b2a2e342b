"""A folder per class without splits, below any common folder: `CLASS/*`. A part of each class becomes val.

Each image has a lot, drawn by the seed and its name in its class; those with the lowest lots become val. So a class's
split does not depend on other classes, nor on the order of the images or the folders around them, and an image that
is added moves at most one other of its class.
"""

from collections.abc import Collection, Iterable, Mapping

from trainyard.core.exits import UserError
from trainyard.prepare.class_names import ClassEntry
from trainyard.prepare.layouts.base import (
    SPLIT_NAMES,
    TESTS,
    UNSURE,
    MemberPlace,
    OutOfPlaceError,
    check_places,
    lot,
    number_classes,
    only_in_val,
)

_SPLITS = SPLIT_NAMES.keys() | TESTS


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
            raise OutOfPlaceError("it lies in no folder, and a folder is a class")
        if split := next((part for part in root.split("/") if part.lower() in _SPLITS - UNSURE), ""):
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
        _refuse_training_beside_testing({root for root, _ in self.places}, label)
        places: dict[str, set[tuple[str, str]]] = {}
        for root, klass in self.places:
            places.setdefault(klass, set()).add((root, klass))
        for klass in sorted(places):
            check_places(places[klass], label, f"class {klass!r}")
        return number_classes(train, val, lambda klass: f"{label} has {only_in_val(klass, train)}")


def _refuse_training_beside_testing(roots: Iterable[str], label: str) -> None:
    """Raise UserError where classes lie in both: their images would become one class, and some of the test's train."""
    found: dict[str, set[str]] = {}
    for root in roots:
        parts = root.split("/")
        for at, part in enumerate(parts):
            if part.lower() in UNSURE:
                found.setdefault(part.lower(), set()).add("/".join(parts[: at + 1]))
    if len(found) > 1:
        both = " and ".join(sorted({folder for folders in found.values() for folder in folders}))
        raise UserError(
            f"{label} has {both}, which look like splits with classes in them: leave one out by 'skip': "
            f"'{min(found['testing'])}/*', and val is drawn from the other; or take layout 'imagefolder', which needs "
            "a folder val"
        )
