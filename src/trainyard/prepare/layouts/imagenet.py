"""Kaggle's ImageNet layout (imagenet-object-localization-challenge), with all of its classes or some.

`Data/CLS-LOC/train/SYNSET/*.JPEG`, `Data/CLS-LOC/val/*.JPEG` in one flat folder, whose labels are in
`LOC_val_solution.csv` (the first word of PredictionString), and names for people in `LOC_synset_mapping.txt`. `val` may
be sorted into folders of synsets, too. A class's index is its position among the sorted synsets of train, which is what
torchvision's ImageFolder gives and what published weights expect. Validation images of other synsets are left out, and
counted; so are the synsets that have a name and no training images, since a subset cannot be told from an archive that
was unpacked in part. `test/` has no labels and `Annotations/` no images: both are left out.
"""

import csv
import io
import re
from collections.abc import Collection, Mapping, Set

from trainyard.core.exits import UserError
from trainyard.prepare.class_names import ClassEntry
from trainyard.prepare.layouts.base import LEFT_OUT, MemberPlace, OutOfPlaceError, check_places
from trainyard.prepare.names import decode_text
from trainyard.prepare.progress import say

VAL_LABELS = "LOC_val_solution.csv"
NAMES = "LOC_synset_mapping.txt"
_TRAIN = re.compile(r"(?:^|/)Data/CLS-LOC/train/([^/]+)/[^/]+$", re.IGNORECASE)
_VAL = re.compile(r"(?:^|/)Data/CLS-LOC/val/([^/]+?)(?:\.[^/.]*)?$", re.IGNORECASE)
_SORTED_VAL = re.compile(r"(?:^|/)Data/CLS-LOC/val/([^/]+/)[^/]+$", re.IGNORECASE)
_NO_SAMPLE = re.compile(r"(?:^|/)(?:Data/CLS-LOC/test/[^/]+|Annotations/.+|ImageSets/.+|LOC_[a-z_]+\.(?:csv|txt))$")


class ImageNet:
    """The layout of ImageNet's localization challenge."""

    texts = frozenset({VAL_LABELS, NAMES})
    learns_first = False
    loose = False
    drawn = 0.0
    absent: Collection[str] = ()

    def __init__(self) -> None:
        self.places: set[tuple[str, str]] = set()

    def learn(self, name: str, text: bytes, label: str) -> None:
        """Let it pass: the tables are needed at the end only."""

    def place(self, name: str) -> MemberPlace | None:
        """Key a training image by its synset, a validation image by its name, or by `SYNSET/` where it has a folder."""
        if match := _TRAIN.search(name):
            return MemberPlace(0, match[1], name[: match.start()], "Data/CLS-LOC/train")
        if match := _VAL.search(name):
            return MemberPlace(1, match[1], name[: match.start()], "Data/CLS-LOC/val")
        if match := _SORTED_VAL.search(name):
            return MemberPlace(1, match[1], name[: match.start()], "Data/CLS-LOC/val")
        if _NO_SAMPLE.search(name):
            return None
        raise OutOfPlaceError

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Give the sorted synsets of train numbers, and look up each validation image in the CSV file or its folder."""
        check_places(self.places, label, "ImageNet's layout")
        if lacking := {NAMES} - texts.keys():
            raise UserError(
                f"{label} has no {min(lacking)}, which the layout 'imagenet' needs; get the archive again, or copy the "
                "file from it"
            )
        names = _read_names(texts[NAMES], label)
        index = {synset: i for i, synset in enumerate(sorted(train))}
        synset_of = _synsets_of(val, skipped, texts, index.keys(), label)
        if strange := set(synset_of.values()) - index.keys() - names.keys():
            raise UserError(
                f"validation images of {label} are of class {min(strange)}, which has no training images and no line "
                f"in {NAMES}; correct the archive"
            )
        missing = names.keys() - index.keys()
        self.absent = missing - skipped
        if missing:
            say(
                f"{label}: the classes are the {len(index):,} that have training images; {NAMES} names "
                f"{len(missing):,} more (first {min(missing)})"
            )
        classes = [ClassEntry(synset, names.get(synset, synset)) for synset in index]
        return classes, [index[key] for key in train], [index.get(synset_of[key], LEFT_OUT) for key in val]


def _synsets_of(
    val: list[str], skipped: set[str], texts: Mapping[str, bytes], known: Set[str], label: str
) -> dict[str, str]:
    """Return the synset of each key of val; raises UserError where an image of a `known` synset is missing."""
    by_folder = {key: key[:-1] for key in val if key.endswith("/")}
    if len(by_folder) == len(val) and val:
        return by_folder
    if by_folder:
        raise UserError(
            f"{label} has validation images both in folders of classes ({min(by_folder)}) and outside of them "
            f"({min(set(val) - by_folder.keys())}); remove one of the two, or leave it out by 'skip'"
        )
    if VAL_LABELS not in texts:
        raise UserError(f"{label} has no {VAL_LABELS}, which the layout 'imagenet' needs; get the archive again")
    solution = _read_solution(texts[VAL_LABELS], label)
    if unlabelled := set(val) - solution.keys():
        raise UserError(f"validation image {min(unlabelled)} of {label} has no label in {VAL_LABELS}; get it again")
    needed = {image for image, synset in solution.items() if synset in known}
    if absent := needed - set(val) - skipped:
        raise UserError(
            f"{label} lacks validation image {min(absent)}, which {VAL_LABELS} lists ({len(absent)} such "
            "images); get the whole archive"
        )
    return {key: solution[key] for key in val}


def _read_names(text: bytes, label: str) -> dict[str, str]:
    """Parse lines of `n01440764 tench, Tinca tinca`; the first of the names is the one shown."""
    pairs = (line.partition(" ") for line in decode_text(text, f"{NAMES} of {label}").splitlines() if line.strip())
    return {synset: names.partition(",")[0].strip() or synset for synset, _, names in pairs}


def _read_solution(text: bytes, label: str) -> dict[str, str]:
    """Parse the labels of the validation images."""
    where = f"{VAL_LABELS} of {label}"
    rows = csv.DictReader(io.StringIO(decode_text(text, where), newline=""))
    solution: dict[str, str] = {}
    try:
        for row in rows:
            image, words = row.get("ImageId"), (row.get("PredictionString") or "").split()
            if not image or not words or None in row:
                raise UserError(f"{where} is not as expected at line {rows.line_num}; get the archive again")
            if solution.setdefault(image, words[0]) != words[0]:
                raise UserError(
                    f"{where} gives {image} two classes, {solution[image]} and {words[0]} at line {rows.line_num}; get "
                    "the archive again"
                )
    except csv.Error as error:
        raise UserError(f"{where} is not sound CSV at line {rows.line_num}: {error}; get the archive again") from None
    return solution
