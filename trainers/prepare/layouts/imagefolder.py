"""torchvision's ImageFolder layout in an archive: `train/CLASS/*` and `val/CLASS/*`, below any common folder."""

import re
from collections.abc import Mapping

from trainers.prepare.class_names import ClassEntry
from trainers.prepare.layouts.base import PICTURES, OutOfPlaceError, numbered

_PICTURE = re.compile(r"(?:^|/)(train|val)/([^/]+)/(?:[^/]+/)*[^/]+\.(?:jpe?g|png)$", re.IGNORECASE)
_IN_SPLIT = re.compile(r"(?:^|/)(?:train|val)/[^/]+/", re.IGNORECASE)
_NO_SAMPLE = re.compile(r"(?:^|/)(?:test/|\.|Thumbs\.db$)", re.IGNORECASE)


class ImageFolder:
    """A folder per class, the same in both splits; a class's index is its position in sorted order."""

    texts: frozenset[str] = frozenset()
    learns_first = False

    def learn(self, name: str, text: bytes, label: str) -> None:
        """No text is needed."""

    def place(self, name: str) -> tuple[int, str] | None:
        """Key each picture by its class folder."""
        if match := _PICTURE.search(name):
            return int(match[1].lower() == "val"), match[2]
        if _NO_SAMPLE.search(name) or not (name.lower().endswith(PICTURES) or _IN_SPLIT.search(name)):
            return None
        raise OutOfPlaceError

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Number the sorted class folders."""
        return numbered(
            train, val, lambda klass: f"{label} has class {klass} in val but not in train; correct the archive"
        )
