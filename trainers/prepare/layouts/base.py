"""The interface of a layout: which split and class the name of an archive's member means."""

from collections.abc import Mapping
from typing import Protocol

from trainers.prepare.class_names import ClassEntry


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
