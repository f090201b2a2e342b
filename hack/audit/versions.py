"""Which of two versions is the newer, as each ecosystem has it: keys to sort by."""

import re
from collections.abc import Callable
from typing import Any

from packaging.version import InvalidVersion, Version

SEMVER = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+.*)?$")
Key = Callable[[str], Any]


def semver(version: str) -> tuple[tuple[int, ...], bool, list[tuple[bool, int, str]]]:
    """Return a key with the order of Semantic Versioning 2.0, which Go modules have too.

    A pre-release comes before its release; numbers before words. Raises ValueError for what is no such version.
    """
    match = SEMVER.match(version)
    if not match:
        raise ValueError(f"{version!r} is no semantic version")
    numbers = tuple(int(part or 0) for part in match.groups()[:3])
    words = match[4].split(".") if match[4] else []
    return numbers, not words, [(not word.isdigit(), int(word) if word.isdigit() else 0, word) for word in words]


def pypi(version: str) -> Version:
    """Return a key with the order of Python packages (PEP 440). Raises ValueError."""
    try:
        return Version(version)
    except InvalidVersion as error:
        raise ValueError(str(error)) from error


KEYS: dict[str, Key] = {"PyPI": pypi, "Go": semver}
