"""Check what a change touches, in about two minutes: static checks first, then the tests nearest to it (make quick).

Chosen are tests that changed, that have the name of what changed, and that import or name it; no more than fit.
BASE=REVISION compares with another commit than the one where the branch left its upstream, BUDGET=SECONDS leaves out
less.
"""

import ast
import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from tests import costs

ROOT = Path(__file__).resolve().parents[1]
BUDGET, PLAIN = 90.0, 5.0  # seconds for all tests; of a file that has not been run here and has no mark `takes`
HERE = "not e2e and not images and not root and not soak"  # what `make test` runs
ELSEWHERE = ("tests/e2e/", "tests/images/")  # tests that need the cluster or the images
# By the check's name in hack/lint: what it reads, a star being anything
READS = {
    "ruff": "*", "ruff format": "*", "shellcheck": "*", "mypy 3.11": "src/* trainers/* pyproject.toml uv.lock",
    "imports run downwards": "src/* pyproject.toml", "yamllint": "*.yaml *.yml .yamllint", "actionlint": ".github/*",
    "pins": ".github/* .ci/* images/* hack/* scripts/* uv.lock", "uv.lock current": "pyproject.toml uv.lock",
    "schemas and chart READMEs current": "charts/* hack/schemas/* src/trainyard/config/* src/trainyard/prepare/*",
    "reference pages current": "docs/* hack/* charts/*/values.yaml src/* trainers/* Makefile",
    "images' requirements current": "pyproject.toml uv.lock images/*requirements* hack/images/*",
}  # fmt: skip
UMBRELLA, UNITS, MAIN = "charts/trainyard", "tests/**/*_test.yaml", "refs/remotes/origin/main"


def git(*words: str) -> str:
    """Return what git prints; raise CalledProcessError where it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def base(asked: str) -> str:
    """Return the commit asked for, else where the branch left its upstream, else the last one."""
    if asked:
        return git("rev-parse", "--verify", f"{asked}^{{commit}}")
    refs = git("for-each-ref", "--format=%(upstream)", git("rev-parse", "--symbolic-full-name", "HEAD"))
    left = git("merge-base", "HEAD", refs or git("for-each-ref", "--format=%(refname)", MAIN) or "HEAD")
    return next((one for one in (left, "HEAD") if changed(one)), "HEAD~1")


def changed(since: str) -> list[str]:
    """Return the files that differ from a commit: also those that are gone, and new ones that git does not ignore."""
    differ = git("diff", "--name-only", "--no-renames", since, "--").splitlines()
    return sorted({*differ, *git("ls-files", "--others", "--exclude-standard").splitlines()})


def checks(files: Collection[str]) -> list[str]:
    """Return the names of the static checks that read one of the files."""
    return [name for name, reads in READS.items() if any(fnmatch.filter(files, one) for one in reads.split())]


def chart_units(files: Collection[str]) -> set[tuple[str, str]]:
    """Return charts, each with the pattern of its unit tests that a change concerns: all, where parts share it."""
    parts = {one.parent.name for one in (ROOT / UMBRELLA).glob("charts/*/tests")}
    mine = [one for one in files if one.startswith(f"{UMBRELLA}/") and not one.endswith(".md")]
    of = {PurePosixPath(one).parts[3] if one.startswith(f"{UMBRELLA}/charts/") else "" for one in mine}
    if not of <= parts:
        return {(UMBRELLA, UNITS), *((f"{UMBRELLA}/charts/{part}", UNITS) for part in parts)}
    beside = {(UMBRELLA, f"tests/{part}/**/*_test.yaml") for part in of if (ROOT / UMBRELLA / "tests" / part).is_dir()}
    return beside | {(f"{UMBRELLA}/charts/{part}", UNITS) for part in of}


def imported(path: str, text: str) -> Iterator[str]:
    """Yield the modules, and the names in them, that a Python file imports. Raises SyntaxError."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = PurePosixPath(path.removeprefix("src/")).parts[: -node.level] if node.level else ()
            module = ".".join([*parents, *filter(None, [node.module])])
            yield from (module, *(f"{module}.{one.name}" for one in node.names))


def mirrors(test: str, path: str) -> bool:
    """Whether a test has the name of a file, of its folder outside src, or is that file."""
    own, name = PurePosixPath(test).stem.removeprefix("test_"), PurePosixPath(path).stem
    folder = PurePosixPath(path).parent.name
    named = own == name or (not path.startswith(("src/", "tests/")) and own == folder)
    return test == path or named or (own.startswith(f"{name}_") and PurePosixPath(test).parent.name == folder)


def choose(files: Sequence[str], tree: Mapping[str, str], steps: int = 4) -> dict[str, str]:
    """Return the tests of a change and why, the nearest first; where none can run here, those of its users."""
    others = [PurePosixPath(path) for path in files if not path.endswith(".py")]
    names = {name: str(one) for one in others for name in (str(one), f'"{one.name}"')}
    names |= {f'"{one.parent}"': str(one) for one in others if one.suffix == ".yaml"}  # as examples are found
    modules = {re.sub(r"^src/|(/__init__)?\.py$", "", one).replace("/", "."): one for one in files if one[-3:] == ".py"}
    modules |= {name.rpartition(".")[2]: path for name, path in modules.items() if path.startswith("tests/")}
    words = tuple(name.rpartition(".")[2] for name in modules)
    uses = {one: imported(one, text) for one, text in tree.items() if any(word in text for word in words)}
    users = {one: modules[name] for one, found in uses.items() for name in found if name in modules}
    users |= {one: path for name, path in names.items() for one, text in tree.items() if name in text}
    tests = [path for path in tree if re.match(r"tests/(.*/)?test_\w+\.py$", path)]
    found = {test: f"tests {path}" for path in files for test in tests if mirrors(test, path)}
    found |= {test: f"uses {users[test]}" for test in tests if test in users and test not in found}
    if steps and users and all(test.startswith(ELSEWHERE) for test in found):
        found |= choose(list(users), tree, steps - 1)
    return found


def lint(files: Sequence[str]) -> bool:
    """Run the static checks and the chart's unit tests that the change concerns."""
    only = [word for name in checks(files) for word in ("--only", name)]
    unit = ("build/bin/helm-unittest", "--strict", "--with-subchart=false", "-f")
    commands = [("hack/lint", *only, *(one for one in files if (ROOT / one).is_file()))]
    commands += [(*unit, pattern, chart) for chart, pattern in sorted(chart_units(files))]
    return all([subprocess.run(command, cwd=ROOT, check=False).returncode == 0 for command in commands])  # noqa: C419


def test(chosen: Mapping[str, str], tree: Mapping[str, str]) -> bool:
    """Run the tests of a change while there is time, and say of the others what runs them."""
    known, left = costs.read()["files"], float(os.environ.get("BUDGET") or BUDGET) * (os.cpu_count() or 1)
    fit, late = list[str](), list[str]()
    for path, why in chosen.items():
        takes = re.search(r"mark\.takes\((\d+)\)", tree[path])
        cost = known[path]["seconds"] if path in known else float(takes[1]) if takes else PLAIN
        if path.startswith(ELSEWHERE):
            print(f"quick: left out, as it needs the cluster: scripts/test {path}")
        elif cost <= left:
            fit, left = [*fit, path], left - cost
            print(f"quick: {path} ({cost:.0f} s): {why}")
        else:
            late.append(path)
    print(f"quick: left out, which BUDGET=SECONDS has time for: {' '.join(late) or 'none'}", flush=True)
    spread = ["-n", "auto", "--dist", "loadfile"] if len(fit) > 2 else []
    command = [sys.executable, "-m", "pytest", "-q", *spread, "-m", HERE, *fit]
    return not fit or subprocess.run(command, cwd=ROOT, check=False).returncode in (0, 5)  # 5: none was collected


def main() -> int:
    """Check what differs; return 1 where something fails."""
    since = base(os.environ.get("BASE", ""))
    files = changed(since)
    print(f"quick: {len(files)} files differ from {since[:8]}: {' '.join(files[:6])}", flush=True)
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", "*.py").splitlines()
    tree = {path: (ROOT / path).read_text() for path in listed if (ROOT / path).is_file()}
    passed = [lint(files), test(choose(files, tree), tree)]
    print(f"quick: {'all of that is well' if all(passed) else 'FAILED'}")
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
