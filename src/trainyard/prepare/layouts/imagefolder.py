"""torchvision's ImageFolder layout in an archive: `train/CLASS/*` and `val/CLASS/*`, below any common folder."""

import re
from collections.abc import Mapping

from trainyard.core.exits import UserError
from trainyard.prepare.class_names import ClassEntry
from trainyard.prepare.layouts.base import (
    SPLIT_FOLDERS,
    MemberPlace,
    OutOfPlaceError,
    check_places,
    numbered,
    only_in_val,
    split_of,
)

_TEST = re.compile(r"(?:^|/)test/", re.IGNORECASE)


class ImageFolder:
    """A folder per class, the same in both splits; a class's index is its position in sorted order."""

    texts: frozenset[str] = frozenset()
    learns_first = False
    loose = False
    drawn = 0.0

    def __init__(self) -> None:
        self.places: set[tuple[str, str]] = set()
        self._last: tuple[str, MemberPlace] | None = None

    def learn(self, name: str, text: bytes, label: str) -> None:
        """No text is needed."""

    def place(self, name: str) -> MemberPlace | None:
        """Key each image by its class folder."""
        around = name.rpartition("/")[0]
        if self._last and around == self._last[0]:  # neighbours are in one folder as a rule
            return self._last[1]
        found = split_of(name)
        if found and found.klass:
            place = MemberPlace(found.split, found.klass, found.root, found.folder)
            self._last = around, place
            return place
        if _TEST.search(name):
            return None
        raise OutOfPlaceError("it lies in no class's folder, as train/CLASS/1.jpg does")

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Give the sorted class folders numbers."""
        check_places(self.places, label, "the layout imagefolder")
        if len(folders := {folder for _, folder in self.places if SPLIT_FOLDERS[folder.lower()]}) > 1:
            both = " and ".join(sorted(folders))
            raise UserError(
                f"{label} has {both}, which are folders of one split; join them, or leave one out by 'skip'"
            )
        return numbered(train, val, lambda klass: f"{label} has {only_in_val(klass, train)}; correct the archive")
