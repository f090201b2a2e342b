"""The names that samples had in the source of a prepared folder: for messages that name a file one can open.

A preparation leaves `members-train.jsonl.gz` and `members-val.jsonl.gz`, a line per sample. Nothing reads them but
messages; folders that were prepared by an earlier version have none.
"""

import gzip
import itertools
import zlib
from pathlib import Path

from trainyard.core.exits import printable
from trainyard.core.files import parse_json


def file_of(root: Path, split: str) -> Path:
    """Where the names of a split's samples are."""
    return root / f"members-{split}.jsonl.gz"


def find_damage(root: Path, split: str, samples: int) -> str:
    """Say what is wrong with the file of a split's names; nothing where it is sound, or is not there."""
    path = file_of(root, split)
    if not path.exists():
        return ""
    try:
        with gzip.open(path, "rb") as lines:
            names = sum(1 for _ in lines)
    except (OSError, EOFError, zlib.error):
        return "cannot be unpacked"
    return "" if names == samples else f"has {names:,} names of {samples:,} samples"


def member_name(root: Path, split: str, sample: int) -> str:
    """Return the name of a sample in the source, or nothing where it is not known."""
    try:
        with gzip.open(file_of(root, split), "rt", encoding="utf-8") as lines:
            name = parse_json(next(itertools.islice(lines, sample, None), '""'))
    except (OSError, EOFError, ValueError, zlib.error):
        return ""
    return printable(name) if isinstance(name, str) else ""
