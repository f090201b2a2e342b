"""Check the wording of documents, docstrings, comments and messages: `python -m hack.prose VALE`, the program's path.

Vale reads Markdown as it is. Of a Python file it reads a copy in which only comments and strings are left, each at its
place, so that its lines are the file's. The rules are in styles/trainyard.
"""

import io
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
PYTHON = ("src/", "trainers/", "hack/", "scripts/")
GENERATED = ("docs/reference/", "charts/")  # from what is checked itself
OTHERS = ("CHANGELOG.md", "CODE_OF_CONDUCT.md")  # what earlier versions said; a text of others


def tracked(*patterns: str) -> list[str]:
    """Return the repository's files, those that are not committed yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def words(source: str) -> Iterator[tokenize.TokenInfo]:
    """Yield comments and strings that are sentences, rather than names or bytes of a file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_data = token.type == tokenize.STRING and "b" in token.string.partition('"')[0].lower()
        if token.type in TEXTS and " " in token.string.strip() and not is_data:
            yield token


def prose(source: str) -> str:
    """Return a Python file without its code: comments and strings alone, in the same lines and columns."""
    lines = source.splitlines()
    kept = [[" "] * len(line) for line in lines]
    for token in words(source):
        (row, column), (last, end) = token.start, token.end
        for number in range(row, last + 1):
            start = column if number == row else 0
            stop = end if number == last else len(lines[number - 1])
            kept[number - 1][start:stop] = lines[number - 1][start:stop]
    return "\n".join("".join(line).rstrip() for line in kept) + "\n"


def lay_out(folder: Path) -> None:
    """Copy what is checked into a folder, below the same names."""
    files = {name: (ROOT / name).read_text() for name in tracked("*.md") if not name.startswith((*GENERATED, *OTHERS))}
    files |= {f"{name}.txt": prose((ROOT / name).read_text()) for name in tracked("*.py") if name.startswith(PYTHON)}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def main(vale: str) -> int:
    """Check everything; returns Vale's exit status, 1 where a rule is broken."""
    with tempfile.TemporaryDirectory() as work:
        lay_out(Path(work))
        command = [vale, "--config", str(HERE / "vale.ini"), "--output", "line", "."]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    print((done.stdout + done.stderr).replace(".py.txt:", ".py:"), end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
