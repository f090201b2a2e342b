"""torchvision's ImageFolder layout in an archive: `train/CLASS/*` and `val/CLASS/*`, below any common folder.

`Training/` is train, too. `test/` and `Testing/` are left out: to choose a model by them is for people to decide.
"""

import re
from collections.abc import Collection, Mapping

from trainyard.core.exits import UserError
from trainyard.prepare.class_names import ClassEntry
from trainyard.prepare.layouts.base import (
    SPLIT_NAMES,
    TESTS,
    UNSURE,
    MemberPlace,
    OutOfPlaceError,
    check_places,
    number_classes,
    only_in_val,
    split_of,
)

_TEST = re.compile(rf"(?:^|/)(?:{'|'.join(sorted(TESTS))})/", re.IGNORECASE)


class ImageFolder:
    """A folder per class, the same in both splits; a class's index is its position in sorted order."""

    texts: frozenset[str] = frozenset()
    learns_first = False
    loose = False
    drawn = 0.0
    absent: Collection[str] = ()

    def __init__(self) -> None:
        self.places: set[tuple[str, str]] = set()
        self._last: tuple[str, MemberPlace] | None = None
        self._test = ""  # a folder of test images, if there is one

    def learn(self, name: str, text: bytes, label: str) -> None:
        """No text is needed."""

    def place(self, name: str) -> MemberPlace | None:
        """Key each image by its class folder."""
        around = name.rpartition("/")[0]
        if self._last and around == self._last[0]:  # neighbours are in one folder as a rule
            return self._last[1]
        found = split_of(name)
        if found and found.klass:
            above = "/".join(filter(None, (found.root, found.folder)))
            inner = "/".join(around[len(above) + 1 :].split("/")[:2])
            place = MemberPlace(found.split, found.klass, found.root, found.folder, inner=inner)
            self._last = around, place
            return place
        if test := _TEST.search(name):
            self._test = self._test or name[: test.end() - 1]
            return None
        raise OutOfPlaceError(
            "it lies in no class's folder, as train/CLASS/1.jpg does; layout 'csv' reads classes from a file"
        )

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Give the sorted class folders numbers."""
        check_places(self.places, label, "the layout imagefolder")
        folders: tuple[set[str], set[str]] = set(), set()
        for _, folder in self.places:
            folders[SPLIT_NAMES[folder.lower()]].add(folder)
        for both in folders:
            if len(both) > 1:
                raise UserError(
                    f"{label} has {' and '.join(sorted(both))}, which are folders of one split; join them, or leave "
                    "one out by 'skip'"
                )
        if train and not val:
            raise UserError(self._without_val(min(folders[0], default=""), label))
        return number_classes(train, val, lambda klass: f"{label} has {only_in_val(klass, train)}; correct the archive")

    def _without_val(self, train: str, label: str) -> str:
        """Return the words for a data set that has no validation images."""
        if not self._test:
            return f"{label} has no folder val (or valid, validation) with classes in it; give it one, beside {train}"
        draw = f", or let layout 'folders' draw val from {train} with 'skip': '{self._test}/*'"
        return (
            f"{label} has no folder val (or valid, validation) with classes in it, and {self._test} is left out; to "
            f"validate on that, rename it to val (unpack an archive first){draw if train.lower() in UNSURE else ''}"
        )
