"""Command blocks of README.md and docs/ run, or say above what they need or which test runs their programs.

A block is fenced as bash. Above it may stand one of:
    <!-- needs: a cluster with GPUs -->       what this machine lacks
    <!-- run by: tests/e2e/test_release.py -->   the test that runs the same programs, with its own settings
    <!-- text run by: tests/test_own_pictures.py -->   the test that runs the page's own text
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import patience

pytestmark = pytest.mark.takes(30)

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(
    r"(?:<!-- (?P<mark>needs|run by|text run by): (?P<what>[^>]+) -->\n)?```bash\n(?P<text>.*?)```", re.S
)


class Block(NamedTuple):
    """A command block and the mark above it."""

    where: str
    mark: str
    what: str
    text: str


def blocks() -> list[Block]:
    """Return the command blocks of all documents."""
    found = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        for match in FENCE.finditer(text):
            line = text[: match.start()].count("\n") + 1
            found.append(Block(f"{path.name}:{line}", match["mark"] or "", match["what"] or "", match["text"]))
    return found


@pytest.mark.parametrize("block", [b for b in blocks() if not b.mark], ids=lambda b: b.where)
def test_the_block_runs(block):
    done = patience.run(["bash", "-euc", block.text], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", [b for b in blocks() if b.mark == "run by"], ids=lambda b: b.where)
def test_the_named_test_runs_the_blocks_commands(block):
    test = (ROOT / block.what.strip()).read_text()
    for line in filter(None, block.text.splitlines()):
        words = line.split("#")[0].split()[:2]
        assert " ".join(words) in test or '"' + '", "'.join(words) + '"' in test, f"{block.what} does not run: {line}"


@pytest.mark.parametrize("block", [b for b in blocks() if b.mark == "text run by"], ids=lambda b: b.where)
def test_the_named_test_reads_the_page(block):
    assert f'"{block.where.partition(":")[0]}"' in (ROOT / block.what.strip()).read_text()


def test_architecture_names_files_and_functions_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    tops = ("charts", "docs", "images", "scripts", "tests", "trainers")
    tree = ["/pyproject.toml", *(f"/{path.relative_to(ROOT)}" for top in tops for path in (ROOT / top).rglob("*.*"))]
    named = re.findall(r"`([\w./-]+(?:\.py|\.yaml|\.tpl|\.toml|/))(?::(\w+))?`", text)
    assert len(named) > 50
    for name, function in named:
        if "NAME" in name:
            continue
        tracked = [path for path in tree if path.endswith(f"/{name}") or (name[-1] == "/" and f"/{name}" in path)]
        assert tracked, f"docs/architecture.md: there is no {name}"
        if function:
            texts = [Path(f"{ROOT}{path}").read_text() for path in tracked]
            assert any(f"def {function}(" in text for text in texts), f"docs/architecture.md: {name} has no {function}"


def test_there_are_blocks_of_each_kind():
    assert {b.mark for b in blocks()} >= {"", "needs", "run by"}
