"""The layout of a CSV file: one row for each image, with its path, its class and, where there is one, its split.

Without a split column each class is divided by the declared fraction. Which images become val depends on their names
and the seed alone, so that rows may change places, and a class always keeps one image for train.
"""

import csv
import io
import re
from collections.abc import Collection, Iterator, Mapping

from trainyard.core.exits import UserError
from trainyard.prepare.class_names import ClassEntry
from trainyard.prepare.layouts.base import SPLIT_NAMES, MemberPlace, OutOfPlaceError, lot, number_classes, only_in_val
from trainyard.prepare.names import clean_path, decode_text, is_utf8, normalise_unicode
from trainyard.prepare.settings import Table

_IGNORED = -1
_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")


class TableLayout:
    """Images and their classes as a CSV file lists them; a class's index is its position in sorted order."""

    learns_first = True
    loose = False
    drawn = 0.0
    absent: Collection[str] = ()

    def __init__(self, settings: Table, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self.texts = frozenset({normalise_unicode(settings.file)})
        self.places: set[tuple[str, str]] = set()
        self._folder = ""
        # By an image's name in the archive: its split and its class
        self._rows: dict[str, tuple[int, str]] = {}
        self._seen: set[str] = set()

    def learn(self, name: str, text: bytes, label: str) -> None:
        """Read the CSV file."""
        where = f"{name} in {label}"
        folder = name.rpartition("/")[0]
        self._folder = _join(folder, self._settings.folder)
        rows: dict[str, tuple[str, str]] = {}
        windows = b"\\" in text and not any("/" in path for _, path, _, _ in self._parse(text, where))
        for line, path, klass, split in self._parse(text, where):
            image = _join(self._folder, (path.replace("\\", "/") if windows else path) + self._settings.suffix)
            if image in rows:
                raise UserError(f"{where} lists {path} twice, at line {line} again; keep one of the rows")
            rows[image] = klass, split
        if not rows:
            raise UserError(f"{where} lists no images; check the file")
        self._rows = self._divide(rows, where)

    def place(self, name: str) -> MemberPlace | None:
        """Look the name up; raises OutOfPlaceError for an image in the folder that has no row."""
        if row := self._rows.get(name):
            if name in self._seen:
                raise OutOfPlaceError(f"{self._settings.file} lists it once, and two files have this name: in two "
                                      "Unicode forms, or packed twice")  # fmt: skip
            self._seen.add(name)
            return None if row[0] == _IGNORED else MemberPlace(*row)
        inside = name.startswith(f"{self._folder}/") if self._folder else True
        if not inside or (self._settings.unlisted == "leave_out" and is_utf8(name)):
            return None
        shortened = _LEADING_ZEROS.sub("", name)
        hint = f"; it lists {shortened}: a spreadsheet has taken leading zeros away" if shortened in self._rows else ""
        raise OutOfPlaceError(f"{self._settings.file} does not list it, and csv.unlisted is 'fail'{hint}")

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Give the sorted classes numbers; raises UserError for rows without an image."""
        if absent := [name for name in self._rows if name not in self._seen]:
            raise UserError(
                f"{label} lacks {min(absent)}, which {self._settings.file} lists ({len(absent)} such rows); check "
                "csv.folder and csv.suffix, or the archive"
            )
        if train and not val and not self._settings.split_column:
            raise UserError(
                f"csv.val_fraction = {self._settings.val_fraction:g}: no class of {label} has so many images that one "
                "would be in val; raise it, or name a csv.split_column"
            )
        return number_classes(
            train, val, lambda klass: f"{self._settings.file} of {label} has {only_in_val(klass, train)}"
        )

    def _parse(self, text: bytes, where: str) -> Iterator[tuple[int, str, str, str]]:
        """Yield line, path, class and split of each row."""
        settings = self._settings
        rows = csv.DictReader(io.StringIO(decode_text(text, where), newline=""), strict=True)
        columns = [settings.path_column, settings.label_column, *filter(None, [settings.split_column])]
        try:
            rows.fieldnames = names = [name.strip() for name in rows.fieldnames or ()]
            if lacking := [column for column in columns if column not in names]:
                raise UserError(f"{where} has no column '{lacking[0]}', {_what_instead(names)}")
            if twice := [column for column in columns if names.count(column) > 1]:
                raise UserError(f"{where} has several columns '{twice[0]}'; rename all but one")
            for row in rows:
                if any(field.strip() for field in row.get(None, ())):
                    raise UserError(
                        f"{where} has more fields at line {rows.line_num} than its first line names; put one that "
                        'holds a comma into quotes, without a space before them (a.jpg,"dog, wild")'
                    )
                values = [(row[column] or "").strip() for column in columns]
                if not all(values):
                    raise UserError(f"{where} has an empty field at line {rows.line_num}; complete or remove the row")
                yield rows.line_num, values[0], values[1], values[2] if settings.split_column else ""
        except csv.Error as error:
            raise UserError(f"{where} is not sound CSV at line {rows.line_num}: {error}; correct it") from None

    def _divide(self, rows: dict[str, tuple[str, str]], where: str) -> dict[str, tuple[int, str]]:
        """Give each image its split."""
        if not self._settings.split_column:
            return self._draw(rows)
        splits = SPLIT_NAMES | dict.fromkeys(self._settings.ignored_splits, _IGNORED)
        if unknown := {split for _, split in rows.values()} - splits.keys():
            raise UserError(
                f"{where} has the split {min(unknown)!r}, which is neither train nor val; correct it, or name it under "
                "csv.ignored_splits"
            )
        return {name: (splits[split], klass) for name, (klass, split) in rows.items()}

    def _draw(self, rows: dict[str, tuple[str, str]]) -> dict[str, tuple[int, str]]:
        """Take the declared part of each class for val, by a hash of seed and name."""
        classes: dict[str, list[str]] = {}
        for name, (klass, _) in rows.items():
            classes.setdefault(klass, []).append(name)
        divided = {}
        for klass, names in classes.items():
            count = min(round(self._settings.val_fraction * len(names)), len(names) - 1)
            for i, name in enumerate(sorted(names, key=lambda name: (lot(name, self._seed), name))):
                divided[name] = (int(i < count), klass)
        return divided


def _what_instead(names: list[str]) -> str:
    """Return what a first line has in place of the columns that were set, and what to do."""
    only = f"only {', '.join(map(repr, names))}"
    separators = [separator for separator in ";\t|" if len(names) == 1 and separator in names[0]]
    if separators:
        return f"{only}: its fields are separated by {separators[0]!r}; save it with commas"
    return f"{only}; set csv.path_column, csv.label_column and csv.split_column"


def _join(folder: str, path: str) -> str:
    """Put paths together as a listing has them."""
    return normalise_unicode(clean_path(f"./{folder}/{path}"))
