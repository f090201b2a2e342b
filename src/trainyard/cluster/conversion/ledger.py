"""An account of a manifest's fields: which were carried, which are done in another way, and which are lost.

What nobody has read in the end is lost, so that a field which this package does not know is named, too.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Path = tuple[str | int, ...]
LONGEST = 80  # characters of a value that are shown


class Note(NamedTuple):
    """A field of the manifest, what it says, and what becomes of it."""

    path: str
    value: str
    why: str


@dataclass
class Ledger:
    """The fields of a manifest that were read, and the notes about them."""

    lost: list[Note] = field(default_factory=list)
    changed: list[Note] = field(default_factory=list)
    read: set[Path] = field(default_factory=set)
    entered: set[Path] = field(default_factory=set)  # what lies above something that was read

    def mark(self, path: Path) -> None:
        """Note that a field was read with all that is below it."""
        self.read.add(path)
        self.entered.update(path[:length] for length in range(len(path)))


@dataclass(frozen=True)
class Node:
    """A field of a manifest: its value (None: it is not there), its path, and the account of the whole."""

    value: Any
    path: Path
    ledger: Ledger

    def at(self, *keys: str | int) -> "Node":
        """Return a field below this one."""
        value = self.value
        for key in keys:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                value = None
        return Node(value, (*self.path, *keys), self.ledger)

    def children(self) -> list["Node"]:
        """Return the fields of a map, or the items of a list."""
        if isinstance(self.value, dict):
            return [self.at(key) for key in self.value]
        return [self.at(index) for index in range(len(self.value))] if isinstance(self.value, list) else []

    def take(self, *keys: str | int, default: Any = None) -> Any:
        """Return a field's value, which is carried with all that is below it."""
        found = self.at(*keys)
        self.ledger.mark(found.path)
        return default if found.value is None else found.value

    def lose(self, *keys: str | int, why: str) -> None:
        """Say that a field is lost, if it is there and was not carried."""
        self._note(self.ledger.lost, self.at(*keys), why)

    def change(self, *keys: str | int, why: str) -> None:
        """Say that a field is done in another way, if it is there and was not carried."""
        self._note(self.ledger.changed, self.at(*keys), why)

    def _note(self, notes: list[Note], found: "Node", why: str) -> None:
        if found.path not in self.ledger.read and not empty(found.value):
            notes.append(Note(text(found.path), shown(found.value), why))
        self.ledger.mark(found.path)


def empty(value: Any) -> bool:
    """Whether a value says nothing; 0 and false do."""
    return value is None or value in ("", {}, [])


def shown(value: Any) -> str:
    """Return a value on one line, its end left out where it is long."""
    line = value if isinstance(value, str) else json.dumps(value, default=str)
    line = " ".join(line.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def text(path: Path) -> str:
    """Return a path as people write it: spec.template.spec.containers[0].args, labels["a.b/c"]."""
    parts = ""
    for key in path:
        if isinstance(key, int):
            parts += f"[{key}]"
        elif parts.endswith(": "):  # another object's name is before its path
            parts += key
        elif parts and not re.fullmatch(r"[A-Za-z0-9_-]+", key):
            parts += f'["{key}"]'
        else:
            parts += f".{key}" if parts else key
    return parts


def unread(node: Node) -> Iterator[Node]:
    """Yield what nobody has read, each field as far up as nothing below it was read."""
    if node.path in node.ledger.read or empty(node.value):
        return
    if node.path in node.ledger.entered and node.children():
        for child in node.children():
            yield from unread(child)
    else:
        yield node
