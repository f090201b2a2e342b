"""Kaggle's ImageNet layout (imagenet-object-localization-challenge).

`Data/CLS-LOC/train/SYNSET/*.JPEG`, `Data/CLS-LOC/val/*.JPEG` in one flat folder, whose labels are in
`LOC_val_solution.csv` (the first word of PredictionString), and names for people in `LOC_synset_mapping.txt`. A class's
index is its position among the sorted synsets, which is what torchvision's ImageFolder gives and what published weights
expect. `test/` has no labels and `Annotations/` no images: both are left out.
"""

import csv
import io
import re
from collections.abc import Mapping

from trainyard.core.exits import UserError
from trainyard.prepare.class_names import ClassEntry
from trainyard.prepare.layouts.base import MemberPlace, OutOfPlaceError, check_places
from trainyard.prepare.names import decoded

VAL_LABELS = "LOC_val_solution.csv"
NAMES = "LOC_synset_mapping.txt"
_TRAIN = re.compile(r"(?:^|/)Data/CLS-LOC/train/([^/]+)/[^/]+$", re.IGNORECASE)
_VAL = re.compile(r"(?:^|/)Data/CLS-LOC/val/([^/]+?)(?:\.[^/.]*)?$", re.IGNORECASE)
_NO_SAMPLE = re.compile(r"(?:^|/)(?:Data/CLS-LOC/test/[^/]+|Annotations/.+|ImageSets/.+|LOC_[a-z_]+\.(?:csv|txt))$")


class ImageNet:
    """The layout of ImageNet's localization challenge."""

    texts = frozenset({VAL_LABELS, NAMES})
    learns_first = False
    loose = False
    drawn = 0.0

    def __init__(self) -> None:
        self.places: set[tuple[str, str]] = set()

    def learn(self, name: str, text: bytes, label: str) -> None:
        """Let it pass: the tables are needed at the end only."""

    def place(self, name: str) -> MemberPlace | None:
        """Key a training image by its synset, a validation image by its name."""
        if match := _TRAIN.search(name):
            return MemberPlace(0, match[1], name[: match.start()], "Data/CLS-LOC/train")
        if match := _VAL.search(name):
            return MemberPlace(1, match[1], name[: match.start()], "Data/CLS-LOC/val")
        if _NO_SAMPLE.search(name):
            return None
        raise OutOfPlaceError

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Give the sorted synsets numbers, and look up each validation image in the CSV file."""
        check_places(self.places, label, "ImageNet's layout")
        synsets = sorted(train)
        index = {synset: i for i, synset in enumerate(synsets)}
        if lacking := self.texts - texts.keys():
            raise UserError(f"{label} has no {min(lacking)}, which the layout 'imagenet' needs; get the archive again")
        names = _read_names(texts[NAMES], label)
        if missing := sorted(set(names) - set(index)):
            raise UserError(
                f"{label} has no training picture of class {missing[0]}, which {NAMES} names ({len(missing)} such "
                "classes); class numbers would shift: get the whole archive"
            )
        solution = _read_solution(texts[VAL_LABELS], label)
        if unlabelled := set(val) - set(solution):
            raise UserError(
                f"validation picture {min(unlabelled)} of {label} has no label in {VAL_LABELS}; get it again"
            )
        if absent := set(solution) - set(val) - skipped:
            raise UserError(
                f"{label} lacks validation picture {min(absent)}, which {VAL_LABELS} lists ({len(absent)} such "
                "pictures); get the whole archive"
            )
        if strange := {solution[key] for key in val} - set(index):
            raise UserError(f"{VAL_LABELS} of {label} names class {min(strange)}, which has no training pictures")
        classes = [ClassEntry(synset, names.get(synset, synset)) for synset in synsets]
        return classes, [index[key] for key in train], [index[solution[key]] for key in val]


def _read_names(text: bytes, label: str) -> dict[str, str]:
    """Parse lines of `n01440764 tench, Tinca tinca`; the first of the names is the one shown."""
    pairs = (line.partition(" ") for line in decoded(text, f"{NAMES} of {label}").splitlines() if line.strip())
    return {synset: names.partition(",")[0].strip() or synset for synset, _, names in pairs}


def _read_solution(text: bytes, label: str) -> dict[str, str]:
    """Parse the labels of the validation images."""
    rows = csv.DictReader(io.StringIO(decoded(text, f"{VAL_LABELS} of {label}"), newline=""))
    solution: dict[str, str] = {}
    for row in rows:
        image, words = row.get("ImageId"), (row.get("PredictionString") or "").split()
        if not image or not words:
            raise UserError(
                f"{VAL_LABELS} of {label} is not as expected at line {rows.line_num}; get the archive again"
            )
        if solution.setdefault(image, words[0]) != words[0]:
            raise UserError(
                f"{VAL_LABELS} of {label} gives {image} two classes, {solution[image]} and {words[0]} at line "
                f"{rows.line_num}; get the archive again"
            )
    return solution
