"""How far one reads for one object: the named templates that a manifest includes, directly or through others."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from . import helm

WIDEST = 160


class Reach(NamedTuple):
    """The named templates below a manifest, the files that hold them, and how deep they include each other."""

    defines: set[str]
    files: set[Path]
    depth: int


def plain(text: str) -> str:
    """A template without its comments."""
    return re.sub(r"{{-?\s*/\*.*?\*/\s*-?}}", "", text, flags=re.S)


def defined() -> dict[str, tuple[Path, str]]:
    """Every named template, by its name: its file and its text."""
    found = {}
    for path in helm.templates():
        for name, text in re.findall(
            r'{{-? define "([\w.]+)" -?}}(.*?)(?={{-? define |\Z)', plain(path.read_text()), re.S
        ):
            assert name not in found, f"{name} is defined twice"
            found[name] = path, text
    return found


DEFINED = defined()


def included(text: str, above: frozenset[str] = frozenset()) -> set[str]:
    """The named templates that a text names, but for those above it."""
    return {name for name in re.findall(r'"(\w+\.\w+)"', text) if name in DEFINED and name not in above}


def depth(text: str, above: frozenset[str] = frozenset()) -> int:
    """How many named templates stand on each other below a text."""
    return max((1 + depth(DEFINED[name][1], above | {name}) for name in included(text, above)), default=0)


def reach(manifest: Path) -> Reach:
    """What a manifest includes."""
    text = plain(manifest.read_text())
    found, waiting = set(), included(text)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= included(DEFINED[name][1]) - found
    return Reach(found, {DEFINED[name][0] for name in found}, depth(text))


@pytest.mark.parametrize(
    ("part", "most", "deepest"),
    [("pytorchjob", 25, 3), ("mpijob", 25, 3), ("trainjob", 25, 4)],
)
def test_a_job_is_read_in_few_places(part: str, most: int, deepest: int):
    found = reach(helm.CHART / f"charts/{part}/templates/{part}.yaml")
    assert "common.trainerPod" in found.defines
    assert len(found.defines) <= most
    assert len(found.files) <= 4
    assert found.depth <= deepest


def test_values_do_not_travel_as_text():
    assert sum(path.read_text().count("fromJson") for path in helm.templates()) <= 10


def test_no_line_of_a_template_is_too_long_to_read():
    for path in helm.templates():
        long = [line for line in path.read_text().splitlines() if len(line) > WIDEST]
        assert not long, f"{path}: {long}"


def test_every_named_template_is_used():
    everything = "".join(plain(path.read_text()) for path in helm.templates())
    for name in DEFINED:
        assert everything.count(f'"{name}"') > 1, name
