"""A folder per class without splits, below any common folder: `CLASS/*`. A part of the pictures becomes val.

Whether a picture does depends on the seed and its own name alone: it stays in its split when others are added.
"""

from collections.abc import Mapping

from trainyard.core.exits import UserError
from trainyard.prepare.class_names import ClassEntry
from trainyard.prepare.layouts.base import SPLIT_FOLDERS, MemberPlace, OutOfPlaceError, check_places, lot, numbered

_SPLITS = {*SPLIT_FOLDERS, "test"}


class Folders:
    """A class is the folder that a picture lies in; a class's index is its position in sorted order."""

    texts: frozenset[str] = frozenset()
    learns_first = False
    loose = True

    def __init__(self, val_fraction: float, seed: int) -> None:
        self._bound = int(val_fraction * 2**64)
        self._seed = seed
        self.places: set[tuple[str, str]] = set()

    def learn(self, name: str, text: bytes, label: str) -> None:
        """No text is needed."""

    def place(self, name: str) -> MemberPlace | None:
        """Key each picture by its folder, and draw its split; folders of splits are another layout's.

        A class may be called `train`: what holds folders is a split.
        """
        around, _, last = name.rpartition("/")
        root, _, klass = around.rpartition("/")
        if not klass:
            raise OutOfPlaceError("it lies in no folder, and a folder is a class")
        if split := next((part for part in root.split("/") if part.lower() in _SPLITS), ""):
            raise OutOfPlaceError(f"{split}/ looks like a split with classes in it: that is layout 'imagefolder'")
        drawn = int.from_bytes(lot(f"{klass}/{last}", self._seed, size=8), "little")
        return MemberPlace(int(drawn < self._bound), klass, root, klass)

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Give the sorted folders numbers; raises UserError for a class whose pictures were all drawn for val."""
        classes = {*train, *val}
        if classes and {klass.lower() for klass in classes} <= _SPLITS:
            raise UserError(
                f"{label} has no folders but {', '.join(sorted(classes))}, which look like splits without classes; "
                "give each class a folder, or rename these if they are classes"
            )
        places: dict[str, set[tuple[str, str]]] = {}
        for root, klass in self.places:
            places.setdefault(klass, set()).add((root, klass))
        for klass in sorted(places):
            check_places(places[klass], label, f"class {klass!r}")
        return numbered(
            train, val, lambda klass: f"all pictures of class {klass!r} in {label} were drawn for val; add pictures, "
            "or set another seed or a smaller val_fraction",
        )  # fmt: skip
