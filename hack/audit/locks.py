"""The packages that the lock files name: Python's, the images', Go's."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from hack.audit.osv import Package
from hack.pins.locks import OURS, PINNED, REPLACE, REQUIRE

GO = re.compile(r"\bgo-bin==([\d.]+)")


def packages(root: Path, paths: list[str]) -> list[Package]:
    """Return what the lock files among the paths name, each version once, with all files that do."""
    files: dict[tuple[str, str, str], list[str]] = {}
    for one in named(root, paths):
        files.setdefault(one[:3], []).append(one.file)
    return [Package(*one, file=", ".join(dict.fromkeys(found))) for one, found in files.items()]


def named(root: Path, paths: list[str]) -> Iterator[Package]:
    """Yield the packages that the lock files among the paths name."""
    for path in paths:
        text = (root / path).read_text() if Path(path).name in ("uv.lock", "go.mod", "pyproject.toml") else ""
        if path.endswith("uv.lock"):
            yield from uv(text, path)
        elif path.endswith("go.mod"):
            yield from go(text, path)
        elif path == "pyproject.toml" and (match := GO.search(text)):
            yield Package("Go", "stdlib", match[1], path)  # all Go programs are built with it
        elif path.startswith("images/") and path.endswith(".txt"):
            yield from requirements((root / path).read_text(), path)


def uv(text: str, path: str) -> Iterator[Package]:
    """Yield the packages of a uv.lock."""
    for one in tomllib.loads(text).get("package", []):
        if not OURS & one["source"].keys():
            yield Package("PyPI", one["name"], one["version"], path)


def requirements(text: str, path: str) -> Iterator[Package]:
    """Yield the packages of a requirements file."""
    for line in text.splitlines():
        if match := PINNED.match(line):
            yield Package("PyPI", match[1], line[match.end() :].split()[0].rstrip(";\\"), path)


def go(text: str, path: str) -> Iterator[Package]:
    """Yield the modules that a go.mod requires, or what replaces them."""
    lines = [line.strip() for line in text.splitlines()]
    replaced = {match[1]: (match[2], match[3]) for line in lines if (match := REPLACE.match(line))}
    for line in lines:
        if match := REQUIRE.match(line):
            name, version = replaced.get(match[1], (match[1], match[2]))
            yield Package("Go", name, version, path)
