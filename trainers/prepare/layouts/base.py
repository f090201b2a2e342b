"""A layout: which split and class the name of an archive's member means; and what several layouts share."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

from trainers.exits import UserError
from trainers.prepare.class_names import ClassEntry

PICTURES = (".jpg", ".jpeg", ".png")  # how the names of pictures end, in lower case


class OutOfPlaceError(Exception):
    """A member has a name that the layout does not know."""


class Layout(Protocol):
    """Maps the names in one kind of archive to splits and classes."""

    # The members that the layout needs the text of, by the last part of the name or by more of its end
    texts: frozenset[str]
    # Whether it needs them before it can place anything; they are then read in a separate pass
    learns_first: bool

    def learn(self, name: str, text: bytes, label: str) -> None:
        """Take a text before anything is placed."""
        ...

    def place(self, name: str) -> tuple[int, str] | None:
        """Return a member's split (as a position in SPLITS) and key, or None when it is known to be no sample.

        Any other name raises OutOfPlaceError: no picture may be lost because its name is slightly wrong.
        """
        ...

    def resolve(
        self, train: list[str], val: list[str], skipped: set[str], texts: Mapping[str, bytes], label: str
    ) -> tuple[list[ClassEntry], list[int], list[int]]:
        """Turn the keys seen in each split into classes and a label per key.

        `skipped` are keys of members left out on purpose; `label` names the archive in messages.
        """
        ...


def numbered(
    train: list[str], val: list[str], strange: Callable[[str], str]
) -> tuple[list[ClassEntry], list[int], list[int]]:
    """What `resolve` returns where the keys are the classes: each one's index is its position in sorted order.

    Raises UserError for a class that is in val alone, with the message that `strange` makes of its name.
    """
    names = sorted(train)
    index = {name: i for i, name in enumerate(names)}
    if alone := set(val) - set(index):
        raise UserError(strange(min(alone)))
    return [ClassEntry(name, name) for name in names], [index[key] for key in train], [index[key] for key in val]


def lot(name: str, seed: int, size: int = hashlib.blake2b.MAX_DIGEST_SIZE) -> bytes:
    """Draw `size` bytes for a picture, by its name and the seed alone."""
    key = seed.to_bytes(8, "little")
    return hashlib.blake2b(name.encode("utf-8", "replace"), key=key, digest_size=size).digest()
