"""What a file's text names: files and folders of the tree, modules that it starts, pages.

Tests start much of what they test as programs, so imports alone do not tell what they depend on.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from trainyard import cli

PATH = re.compile(r"[\w.@-]+(?:/[\w.@-]+)+")
MODULE = re.compile(r"\b(?:trainyard|trainers|hack|benchmarks|scripts|tests|examples)(?:\.\w+)+")
COMMAND = re.compile(r"\btrainyard ([a-z]+)\b")
PAGE = re.compile(r"[\w-]+\.md")


class Text(NamedTuple):
    """What matters in a Python file: its strings, and paths that are joined of strings."""

    strings: list[str]
    joined: list[str]


def read(source: str) -> Text:
    """Parse a file; docstrings do not count. Raises SyntaxError."""
    text = Text([], [])
    nodes = [ast.parse(source)]
    for node in nodes:  # grows
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text.strings.append(node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            text.joined.append("/".join(_parts(node)))
        nodes += ast.iter_child_nodes(node)  # type: ignore[arg-type]
    return text


def _parts(node: ast.expr) -> list[str]:
    """Return the last strings that a path is joined of: those of ROOT / "images" / name / "a" / "b" are a, b."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return []
    if not (isinstance(node.right, ast.Constant) and isinstance(node.right.value, str)):
        return []
    return [*_parts(node.left), node.right.value]


def paths(texts: list[str], folder: str, known: set[str]) -> Iterator[str]:
    """Yield the known files and folders that texts name, from the root or from the folder of who names them.

    Folders end with a slash in `known`; a folder right below the root is too much to depend on.
    """
    for token in {token for text in texts for token in (*PATH.findall(text), text)}:
        name = str(PurePosixPath(token))
        for place in (name, f"{folder}/{name}"):
            if place in known and "/" in place:
                yield place
            elif f"{place}/" in known and "/" in place:
                yield f"{place}/"


def modules(texts: list[str], known: dict[str, str]) -> Iterator[str]:
    """Yield the files of the modules that texts name, by the longest name that is known; a command names its module.

    The words of a command are one text, or neighbours in a list of arguments.
    """
    lines = [*texts, *(f"trainyard {word}" for before, word in itertools.pairwise(texts) if before == "trainyard")]
    started = {name for text in lines for name in COMMAND.findall(text)} & cli.known().keys()
    tokens = {token for text in texts for token in MODULE.findall(text)}
    for token in tokens | {cli.known()[name].target.partition(":")[0] for name in started}:
        words = token.split(".")
        names = (".".join(words[:count]) for count in range(len(words), 1, -1))
        found = next((known[name] for name in names if name in known), "")
        if found:
            yield found


def pages(texts: list[str], known: set[str]) -> Iterator[str]:
    """Yield the pages of docs/ whose names alone are strings of a file (tests.documents)."""
    for text in texts:
        if PAGE.fullmatch(text) and f"docs/{text}" in known:
            yield f"docs/{text}"
