"""Check that all that is fetched is pinned: `python -m hack.pins`. Ends with 1 where pin and reason are missing."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hack.pins import dockerfiles, installs, locks, workflows
from hack.pins.problems import Problem

ROOT = Path(__file__).resolve().parents[2]
SHELL = ("bash", "/sh", "shell=bash")


def main() -> int:
    """Print each missing pin with its place, and each exception with its reason."""
    wrong = 0
    for path, problem in sorted(check(ROOT, tracked(ROOT))):
        wrong += not problem.reason
        print(f"{path}:{problem.line}: {problem.what}{f' (on record: {problem.reason})' if problem.reason else ''}")
    if wrong:
        print("pin it, or say why not in a comment at its line: # not pinned: REASON (docs/supply-chain.md)")
    return 1 if wrong else 0


def tracked(root: Path) -> list[str]:
    """Return the files of the checkout, those not yet added too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    return [one for one in subprocess.check_output(command, cwd=root, text=True).split("\0") if (root / one).is_file()]


def check(root: Path, paths: list[str]) -> Iterator[tuple[str, Problem]]:
    """Yield what is not pinned in these files."""
    for path in paths:
        name = Path(path).name
        checks = []
        if path.startswith(".github/") and name.endswith((".yaml", ".yml")):
            checks = [workflows.check, installs.check]
        elif name.startswith(("Dockerfile", "Containerfile")) or name.endswith(".Dockerfile"):
            checks = [dockerfiles.check, installs.check]
        elif name == "uv.lock":
            checks = [locks.uv]
        elif path.startswith("images/") and name.endswith(".txt") and name != "constraint.txt":
            checks = [locks.requirements]
        elif name == "go.mod":
            sums = (root / path).with_name("go.sum")
            yield from ((path, one) for one in locks.go((root / path).read_text(), sums.read_text()))
        elif not name.endswith((".py", ".md")) and is_shell(root / path):
            checks = [installs.check]
        for one in checks:
            yield from ((path, problem) for problem in one((root / path).read_text()))


def is_shell(path: Path) -> bool:
    """Whether a file's first line says that it is a shell script."""
    with path.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#") and any(word.encode() in first for word in SHELL)


if __name__ == "__main__":
    sys.exit(main())
