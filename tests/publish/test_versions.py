"""The version stands in one place; each rule about it is broken once."""

import subprocess
import sys
from pathlib import Path

import pytest

from hack.publish import versions
from tests import checkout

CHANGES = """# Changelog

## [Unreleased]

## [1.1.0] - 2026-03-01

### Removed
- `old.key`, in place of which there is `new.key` of before.

## [1.0.0] - 2026-02-01

### Deprecated
- `old.key`: write `new.key` of before.

### Added
- Everything,
  on two lines.
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files that state a version, all of them 1.1.0."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES.replace("`new.key` of before", "another"))
    part = tmp_path / "charts" / "trainyard" / "charts" / "part"
    part.mkdir(parents=True)
    lines = 'name: x\nversion: 1.1.0\nappVersion: "1.1.0"\ndependencies:\n  - name: part\n    version: 1.1.0\n'
    for folder in (part, part.parents[1]):
        (folder / "Chart.yaml").write_text(lines)
    package = tmp_path / "src" / "x"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.1.0"\n')
    return tmp_path


def change(root: Path, name: str, old: str, new: str) -> list[str]:
    """Change a file, and return what is then wrong."""
    path = root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return list(versions.problems(root))


def test_this_tree_states_one_version():
    assert list(versions.problems()) == []


def test_a_tree_that_states_one_version_has_no_problem(root):
    assert list(versions.problems(root)) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "charts/trainyard/Chart.yaml",
            "\nversion: 1.1.0",
            "\nversion: 1.0.0",
            "charts/trainyard/Chart.yaml says 1.0.0",
        ),
        ("charts/trainyard/Chart.yaml", "    version: 1.1.0", "    version: 1.2.0", "Chart.yaml says 1.2.0"),
        ("charts/trainyard/charts/part/Chart.yaml", '"1.1.0"', '"1.1.1"', "part/Chart.yaml says 1.1.1"),
        ("src/x/__init__.py", "1.1.0", "1.0.9", "src/x/__init__.py says 1.0.9, and pyproject.toml 1.1.0"),
        ("CHANGELOG.md", "## [1.1.0]", "## [1.0.5]", "the newest version is 1.0.5"),
        ("CHANGELOG.md", "[1.1.0] - 2026-03-01", "[1.1.0]", "[1.1.0] has no date"),
        ("CHANGELOG.md", "## [1.0.0]", "## [1.2.0]", "1.1.0 stands above 1.2.0, and is not newer"),
        ("CHANGELOG.md", "## [1.0.0]", "## [1.0]", "1.0 is not a semantic version"),
        ("CHANGELOG.md", "### Added", "### New", "[1.0.0] has ### New; there are Added, Changed"),
        (
            "CHANGELOG.md",
            "- `old.key`: write",
            "- `other.key`: write",
            "[1.1.0] removes `old.key`, which no earlier version",
        ),
    ],
)
def test_each_rule_is_checked(root, name, old, new, said):
    (problem,) = change(root, name, old, new)
    assert said in problem


def test_the_version_itself_is_semantic(root):
    assert "01.1.0 is not a semantic version" in change(root, "pyproject.toml", "1.1.0", "01.1.0")[0]


def test_write_brings_all_places_to_the_version_of_pyproject(root):
    assert len(change(root, "pyproject.toml", "1.1.0", "1.2.0-rc.1")) == 4  # two charts, the package, the changelog
    versions.write(root)
    (left,) = versions.problems(root)
    assert "CHANGELOG.md: the newest version is 1.1.0" in left


def test_entries_are_read_whole(root):
    newest, older = [entry for entry in versions.changelog(root) if entry.version != "Unreleased"]
    assert (newest.version, newest.date) == ("1.1.0", "2026-03-01")
    assert older.changes["Added"] == ["Everything, on two lines."]


def test_what_may_not_be_published_yet(root):
    assert list(versions.unfinished("1.1.0", root)) == []
    changes = root / "CHANGELOG.md"
    text = changes.read_text()
    changes.write_text(text.replace("2026-03-01", "unreleased"))
    assert "has no date for 1.1.0" in next(versions.unfinished("1.1.0", root))
    changes.write_text(text.replace("## [Unreleased]\n", "## [Unreleased]\n\n### Fixed\n- It.\n"))
    assert "has changes under [Unreleased]" in next(versions.unfinished("1.1.0", root))


def test_a_prerelease_comes_before_its_version():
    rising = ["0.9.0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-rc.2", "1.0.0-rc.10", "1.0.0", "1.0.1", "1.10.0"]
    mixed = [*rising[1::2], *rising[::2]]
    assert sorted(mixed, key=versions.order) == rising


def test_the_command_ends_with_2_where_something_differs(tmp_path):
    tree = checkout.copy(tmp_path / "tree")
    chart = tree / "charts" / "trainyard" / "Chart.yaml"
    chart.write_text(chart.read_text().replace('appVersion: "0.1.0"', 'appVersion: "0.2.0"'))

    def command(*words: str) -> int:
        return subprocess.run([sys.executable, "-m", "hack.publish.versions", *words], cwd=tree, check=False).returncode

    assert [command(), command("--what"), command("--write"), command()] == [2, 2, 0, 0]
