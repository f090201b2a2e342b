"""Names of classes: the one that the archive uses, and one for people."""

import csv
import io
from collections.abc import Mapping
from typing import NamedTuple

from trainyard.core.exits import UserError
from trainyard.prepare.names import decode_text, normalise_unicode


class ClassEntry(NamedTuple):
    """One class: the name that the archive uses, and one for people."""

    synset: str
    name: str


class Naming(NamedTuple):
    """Where names for people come from beside the layout: a text in the archive, and the settings, which win."""

    file: str
    names: Mapping[str, str]


def name_classes(classes: list[ClassEntry], naming: Naming, text: bytes | None, label: str) -> list[ClassEntry]:
    """Give classes their names; raises UserError for a name whose class does not exist."""
    if naming.file and text is None:
        raise UserError(f"{label} has no {naming.file}, which 'class_file' names; correct the setting")
    given = {normalise_unicode(key): name for key, name in naming.names.items()}
    named = {**_read(naming.file, text or b"", label), **given}
    known = {entry.synset for entry in classes}
    if unknown := given.keys() - known:
        raise UserError(
            f"'class_names' names class {min(unknown)}, which {label} does not have; it has {_some(known)}: correct it"
        )
    if (naming.file or named) and not named.keys() & known:
        raise UserError(f"{naming.file} in {label} names none of its classes; it has {_some(known)}")
    return [ClassEntry(entry.synset, named.get(entry.synset, entry.name)) for entry in classes]


def _read(file: str, text: bytes, label: str) -> dict[str, str]:
    """Parse lines of `CLASS NAME`, or of `CLASS,NAME` in a CSV file."""
    lines = decode_text(text, f"{file} in {label}")
    if file.lower().endswith(".csv"):
        rows = csv.reader(io.StringIO(lines, newline=""))
        try:
            return {row[0]: row[1] for row in rows if len(row) > 1 and row[1]}
        except csv.Error as error:
            raise UserError(
                f"{file} in {label} is not sound CSV at line {rows.line_num}: {error}; correct it"
            ) from None
    pairs = (line.strip().partition(" ") for line in lines.splitlines())
    return {key: name.strip() for key, _, name in pairs if name.strip()}


def _some(known: set[str]) -> str:
    return ", ".join(sorted(known)[:3]) + (" and others" if len(known) > 3 else "")
