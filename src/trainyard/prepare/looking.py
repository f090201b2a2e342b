"""Writes a dataset's page, and says what it found."""

from pathlib import Path

from trainyard.core.exits import UserError
from trainyard.core.storage import StorageError
from trainyard.prepare.progress import say
from trainyard.report import dataset


def look(root: Path, to: Path | None = None) -> None:
    """Write the page of a prepared folder; raises UserError and StorageError."""
    try:
        found = dataset.write(root, to)
    except OSError as error:
        raise UserError(
            f"{to or root / dataset.FILE} cannot be written: {error.strerror}; name another file with --out"
        ) from None
    for text in dataset.notices(found):
        say(text)
    say(f"{to or root / dataset.FILE} shows classes, sizes, equal and odd images")


def write_missing_page(root: Path) -> None:
    """Write the page of a complete folder that has none: the dataset is complete without it."""
    try:
        if (root / dataset.FILE).exists():
            return
        for left in root.glob(f".{dataset.FILE}.*.tmp"):  # by a process that was killed
            left.unlink(missing_ok=True)
        look(root)
    except (UserError, StorageError, OSError) as error:
        say(f"the page about the dataset was not written: {error}; `trainyard prepare look {root}` writes it")
