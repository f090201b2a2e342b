"""The version, from one place: pyproject.toml. What else states it is compared, and written by `--write`.

    python -m hack.publish.versions            compares (part of lint); ends with 2 where something differs
    python -m hack.publish.versions --write    writes the version of pyproject.toml into the charts and the package

CHANGELOG.md has the versions as headings, newest first, below `## [Unreleased]`. What a version removes, an earlier one
has deprecated: each key or name in backquotes under `### Removed` stands under `### Deprecated` of an earlier version.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hack.publish.programs import ROOT, PublishError

# https://semver.org, whose own suggestion is longer by the names of its groups
SEMANTIC = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[A-Za-z-][\dA-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][\dA-Za-z-]*))*))?"
)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
HEADING = re.compile(r"^## \[(.+?)\](?: - (\S+))?$", re.M)
SECTION = re.compile(r"^### (\w+)$", re.M)
BULLET = re.compile(r"^- (.+(?:\n  .+)*)", re.M)
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
CHART_LINE = re.compile(r'^(\s*(?:version|appVersion): "?)([^"\s#]+)("?)', re.M)
PACKAGE_LINE = re.compile(r'^(__version__ = ")(.+)(")$', re.M)


class Entry(NamedTuple):
    """A version in CHANGELOG.md: its date, `unreleased` or nothing; and its entries by kind."""

    version: str
    date: str
    changes: dict[str, list[str]]


def stated(root: Path = ROOT) -> str:
    """Return the version that pyproject.toml states."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def derived(root: Path = ROOT) -> Iterator[tuple[Path, re.Pattern[str]]]:
    """Yield the other files that state the version, and the lines in which they do."""
    chart = root / "charts" / "trainyard"
    yield chart / "Chart.yaml", CHART_LINE
    yield from ((path, CHART_LINE) for path in sorted(chart.glob("charts/*/Chart.yaml")))
    for pattern in ("*/__init__.py", "src/*/__init__.py"):
        for path in sorted(root.glob(pattern)):
            if PACKAGE_LINE.search(path.read_text()):
                yield path, PACKAGE_LINE


def write(root: Path = ROOT) -> None:
    """Write the version of pyproject.toml wherever else it stands."""
    version = stated(root)
    for path, line in derived(root):
        path.write_text(line.sub(rf"\g<1>{version}\g<3>", path.read_text()))


def changelog(root: Path = ROOT) -> list[Entry]:
    """Return the versions of CHANGELOG.md, as they stand there."""
    text = (root / "CHANGELOG.md").read_text()
    found = list(HEADING.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    return [
        Entry(match[1], match[2] or "", _sections(text[match.end() : end]))
        for match, end in zip(found, ends, strict=True)
    ]


def _sections(text: str) -> dict[str, list[str]]:
    """Return the entries below the headings of one version."""
    parts = SECTION.split(text)[1:]
    return {
        kind: [" ".join(bullet.split()) for bullet in BULLET.findall(body)]
        for kind, body in zip(parts[::2], parts[1::2], strict=True)
    }


def problems(root: Path = ROOT) -> Iterator[str]:
    """Yield what contradicts pyproject.toml, or the rules of versions."""
    version = stated(root)
    if not SEMANTIC.fullmatch(version):
        yield f"pyproject.toml: {version} is not a semantic version, such as 1.2.3 or 1.2.3-rc.1"
    for path, line in derived(root):
        for found in {match[2] for match in line.finditer(path.read_text())} - {version}:
            place = path.relative_to(root)
            yield f"{place} says {found}, and pyproject.toml {version}: run python -m hack.publish.versions --write"
    entries = changelog(root)
    released = [entry for entry in entries if entry.version != "Unreleased"]
    if not released or released[0].version != version:
        newest = released[0].version if released else "none"
        yield f"CHANGELOG.md: the newest version is {newest}, and pyproject.toml says {version}: add ## [{version}]"
    yield from _shape(entries)
    yield from unannounced(released)


def _shape(entries: list[Entry]) -> Iterator[str]:
    """Yield what is wrong with headings and their order."""
    for number, entry in enumerate(entries):
        if entry.version == "Unreleased":
            if number:
                yield "CHANGELOG.md: ## [Unreleased] is not the first heading"
        elif not SEMANTIC.fullmatch(entry.version):
            yield f"CHANGELOG.md: {entry.version} is not a semantic version"
        elif entry.date != "unreleased" and not DATE.fullmatch(entry.date):
            yield f"CHANGELOG.md: ## [{entry.version}] has no date: write ## [{entry.version}] - YYYY-MM-DD"
        for kind in entry.changes.keys() - set(KINDS):
            yield f"CHANGELOG.md: [{entry.version}] has ### {kind}; there are {', '.join(KINDS)}"
    versions = [entry.version for entry in entries if SEMANTIC.fullmatch(entry.version)]
    for newer, older in pairwise(versions):
        if order(newer) <= order(older):
            yield f"CHANGELOG.md: {newer} stands above {older}, and is not newer"


def unannounced(released: list[Entry]) -> Iterator[str]:
    """Yield what a version removes without an earlier one that deprecated it."""
    for number, entry in enumerate(released):
        before = " ".join(text for older in released[number + 1 :] for text in older.changes.get("Deprecated", []))
        for removed in entry.changes.get("Removed", []):
            for name in re.findall(r"`[^`]+`", removed):
                if name not in before:
                    yield (
                        f"CHANGELOG.md: [{entry.version}] removes {name}, which no earlier version has under "
                        "### Deprecated: keep it, with a warning, for one version"
                    )


def order(version: str) -> tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]:
    """Return what semantic versions are sorted by: a pre-release comes before its version."""
    match = SEMANTIC.fullmatch(version)
    if not match:
        raise PublishError(f"{version} is not a semantic version, such as 1.2.3 or 1.2.3-rc.1")
    parts = match[4].split(".") if match[4] else []
    ranks = tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts)
    return tuple(int(part) for part in match.group(1, 2, 3)), not parts, ranks


def unfinished(version: str, root: Path = ROOT) -> Iterator[str]:
    """Yield what CHANGELOG.md lacks before a version may be published."""
    for entry in changelog(root):
        if entry.version == "Unreleased" and any(entry.changes.values()):
            yield f"CHANGELOG.md has changes under [Unreleased]: move them to [{version}]"
        if entry.version == version and not DATE.fullmatch(entry.date):
            yield f"CHANGELOG.md has no date for {version}: write ## [{version}] - YYYY-MM-DD"


def main(arguments: list[str]) -> int:
    """Compare, or write; returns the exit code."""
    if arguments == ["--write"]:
        write()
    elif arguments:
        print("usage: python -m hack.publish.versions [--write]", file=sys.stderr)
        return 2
    found = list(problems())
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 2 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
