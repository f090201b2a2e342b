"""Command blocks of README.md, CONTRIBUTING.md and docs/, and their own text as a test runs it.

A block is fenced as bash. Above it may stand one of:
    <!-- needs: a cluster with GPUs -->              what this machine lacks: the block is not run
    <!-- run by: tests/test_first_model.py -->      the test that runs the block's own text, by a call of this module
Without either, tests/test_docs.py runs it as it stands.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests import patience

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"(?:<!-- (?P<mark>[a-z ]+): (?P<what>[^>]+) -->\n)?```bash\n(?P<text>.*?)```", re.S)


class Block(NamedTuple):
    """A command block and the mark above it."""

    where: str
    mark: str
    what: str
    text: str


def blocks() -> list[Block]:
    """Return the command blocks of all documents."""
    found = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        for match in FENCE.finditer(text):
            line = text[: match.start()].count("\n") + 1
            what = (match["what"] or "").strip()
            found.append(Block(f"{path.name}:{line}", match["mark"] or "", what, match["text"]))
    return found


def texts(page: str, run_by: str = "") -> list[str]:
    """Return the text of each block of a page, or of those that name this test."""
    found = [one.text for one in blocks() if one.where.startswith(f"{page}:") and run_by in ("", one.what)]
    assert found, f"{page} has no command block"
    return found


def text(page: str, has: str, instead: dict[str, str] | None = None) -> str:
    """Return the text of the one block of a page that begins with these words, or else has them.

    `instead` puts names of this machine in place of the page's.
    """
    (found,) = [one for one in texts(page) if one.startswith(has)] or [one for one in texts(page) if has in one]
    for word, other in (instead or {}).items():
        assert word in found, f"{page}: the block of {has} does not say {word}"
        found = found.replace(word, other)
    return found


def shown(page: str, block: str) -> list[str]:
    """Return the lines that a page shows below a command block, fenced as text; none where it shows nothing."""
    (path,) = [one for one in (ROOT / page, ROOT / "docs" / page) if one.exists()]
    rest = path.read_text().partition(f"```bash\n{block}```\n")[2]
    found = re.match(r"\n(?:[A-Z][^`\n]*:\n\n)?```text\n(.*?)```", rest, re.S)
    return found[1].splitlines() if found else []


def lacking(lines: list[str], output: str, any_of: tuple[str, ...] = ()) -> list[str]:
    """Return the shown lines that an output does not have in this order; numbers, and the words `any_of`, may differ.

    A line of three points stands for any others.
    """
    printed, missing = iter(" ".join(line.split()) for line in output.splitlines()), []
    for line in lines:
        if line.strip() == "...":
            continue
        like = re.escape(" ".join(line.split()))
        for word in any_of:
            like = like.replace(re.escape(word), ".+")
        like = re.sub(r"\d+(?:(?:\\\.|,)\d+)*(?:e\\-\d+)?", r"[\\d.,e-]+", like)
        if not any(re.fullmatch(like, one) for one in printed):
            missing.append(line)
            printed = iter(())
    return missing


def environment(**own: str | Path) -> dict[str, str]:
    """Return the environment of a reader in the checkout, whose `python` is its own, and these variables."""
    path = f"{ROOT}/.venv/bin:{ROOT}/build/bin:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}/src:{ROOT}"} | {
        key: str(value) for key, value in own.items()
    }


def run(
    page: str, has: str, instead: dict[str, str] | None = None, cwd: Path = ROOT, **own: str | Path
) -> "subprocess.CompletedProcess[str]":
    """Run a block's text; it must succeed."""
    done = patience.run(["bash", "-euc", text(page, has, instead)], cwd=cwd, env=environment(**own))
    assert done.returncode == 0, f"{page}: {done.stdout}{done.stderr}"
    return done


def start(line: str, cwd: Path, **own: str | Path) -> "subprocess.Popen[str]":
    """Start one line of a block, in a session of its own; signals reach its program."""
    return subprocess.Popen(
        ["bash", "-euc", f"exec {line}"], cwd=cwd, env=environment(**own), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
