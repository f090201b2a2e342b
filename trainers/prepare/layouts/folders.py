"""A folder per class without splits, below any common folder: `CLASS/*`. A part of the pictures becomes val.

Whether a picture does depends on the seed and its own name alone: it stays in its split when others are added.
"""

import re
from collections.abc import Mapping

from trainers.prepare.class_names import ClassEntry
from trainers.prepare.layouts.base import PICTURES, OutOfPlaceError, lot, numbered

_PICTURE = re.compile(r"(?:^|/)([^/]+)/([^/]+\.(?:jpe?g|png))$", re.IGNORECASE)
_SPLIT = re.compile(r"(?:^|/)(?:train|val|valid|validation|test)/", re.IGNORECASE)
_NO_SAMPLE = re.compile(r"(?:^|/)(?:\.|__MACOSX/|Thumbs\.db$)", re.IGNORECASE)


class Folders:
    """A class is the folder that a picture lies in; a class's index is its position in sorted order."""

    texts: frozenset[str] = frozenset()
    learns_first = False

    def __init__(self, val_fraction: float, seed: int) -> None:
        self._bound = int(val_fraction * 2**64)
        self._seed = seed

    def learn(self, name: str, text: bytes, label: str) -> None:
        """No text is needed."""

    def place(self, name: str) -> tuple[int, str] | None:
        """Key each picture by its folder, and draw its split; folders of splits are another layout's."""
        if _NO_SAMPLE.search(name) or not name.lower().endswith(PICTURES):
            return None
        match = _PICTURE.search(name)
        if not match or _SPLIT.search(name):
            raise OutOfPlaceError
        drawn = int.from_bytes(lot(f"{match[1]}/{match[2]}", self._seed, size=8), "little")
        return int(drawn < self._bound), match[1]

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Number the sorted folders; raises UserError for a class whose pictures were all drawn for val."""
        return numbered(
            train, val, lambda klass: f"all pictures of class {klass} in {label} were drawn for val; add pictures, or "
            "set another seed or a smaller val_fraction",
        )  # fmt: skip
