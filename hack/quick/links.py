"""Which files use which: the graph of imports, and what imports do not show (named.py, and FOUND below)."""

import fnmatch
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

import grimp
from grimp.exceptions import SourceSyntaxError

from hack.quick import named
from hack.quick.changes import ROOT

PACKAGES = ("trainyard", "trainers", "hack", "benchmarks", "scripts", "tests", "examples")
ON_PATH = ("examples/sdk", "tests/util")  # besides each test's own folder, and those above it
# How far a user is from what it uses: the nearer, the more a change of the one says of the other
IMPORTS, NAMES, STARTS, SETS_UP = 1.0, 1.0, 2.0, 4.0

# Folders and files whose users find them in ways that no text shows; the last two concern everything
FOUND = {
    "docs/": ("tests/test_docs.py", "tests/test_site.py"),
    "examples/*.yaml": ("tests/charts/helm.py",),
    "images/": ("tests/images/test_images.py",),
    "pyproject.toml": ("tests/conftest.py",),
    "uv.lock": ("tests/conftest.py",),
}

TABLES = ("tests/test_quick.py", "hack/quick/checks.py", "hack/quick/links.py")  # they use nothing that they name
COMMENT = re.compile(r"(?m)(?:^|\s)#.*$")

Users = Mapping[str, Mapping[str, float]]  # by file, or folder with a slash: who uses it, and how far that is


def users(tree: list[str]) -> Users:
    """Return who uses what among the files of the tree. Raises SyntaxError for a Python file that is none."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for used, user, far in _all(tree):
        if used != user:
            found[used][user] = min(far, found[used].get(user, far))
    return found


def _all(tree: list[str]) -> Iterator[tuple[str, str, float]]:
    python = {path for path in tree if path.endswith(".py")}
    modules = {module_of(path): path for path in python}
    folders = {f"{folder}/" for path in tree for folder in map(str, PurePosixPath(path).parents[:-1])}
    known = {one for one in (*tree, *folders) if not is_test(one) and not (one.startswith("tests/") and one[-1] == "/")}
    yield from ((used, user, SETS_UP if user.endswith("/conftest.py") else IMPORTS) for used, user in _imports(modules))
    for path in sorted(python):
        if path.startswith(("tests/", "scripts/", "hack/", "benchmarks/")) and path not in TABLES:
            yield from _named(path, modules, known)
        if is_test(path):
            above = (f"{folder}/conftest.py" for folder in PurePosixPath(path).parents[:-1])
            yield from ((used, path, SETS_UP) for used in above if used in known)
    for path in tree:
        if (
            "/" in path
            and not path.endswith((".py", ".md", ".yaml", ".json"))
            and path.startswith(("scripts/", "hack/", "benchmarks/"))
        ):
            yield from _named_by_script(path, modules, known)
    for pattern, those in FOUND.items():
        found = [pattern] if pattern.endswith("/") else fnmatch.filter(tree, pattern)
        yield from ((used, user, NAMES) for used in found for user in those)


def _named(path: str, modules: dict[str, str], known: set[str]) -> Iterator[tuple[str, str, float]]:
    """Yield what a test or script names, but for other tests."""
    text = named.read((ROOT / path).read_text())
    folder = str(PurePosixPath(path).parent)
    yield from ((used, path, NAMES) for used in named.paths([*text.strings, *text.joined], folder, known))
    yield from ((used, path, STARTS) for used in named.modules(text.strings, modules) if used in known)
    yield from ((used, path, NAMES) for used in named.pages(text.strings, known))


def _named_by_script(path: str, modules: dict[str, str], known: set[str]) -> Iterator[tuple[str, str, float]]:
    """Yield what a shell script names."""
    text = (ROOT / path).read_text(errors="replace")
    if text.startswith("#!"):
        text = COMMENT.sub("", text)
        yield from ((used, path, NAMES) for used in named.paths([text], str(PurePosixPath(path).parent), known))
        yield from ((used, path, STARTS) for used in named.modules([text], modules) if used in known)


def _imports(modules: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs of files: imported, importing. A module's packages are imported with it. Raises SyntaxError."""
    sys.path[:0] = [place for place in (str(ROOT), str(ROOT / "src")) if place not in sys.path]
    try:
        graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    except SourceSyntaxError as error:
        raise SyntaxError(str(error)) from None
    for module, path in modules.items():
        if module not in graph.modules:
            continue
        for name in graph.find_modules_directly_imported_by(module):
            if used := modules.get(name) or _beside(path, name, modules):
                yield used, path
        words = module.split(".")
        for count in range(1, len(words)):
            package = modules.get(".".join(words[:count]), "")
            if package.endswith("/__init__.py"):
                yield package, path


def _beside(path: str, name: str, modules: dict[str, str]) -> str:
    """Return the file of a module that is imported by its bare name: from a test's folder or one above, or ON_PATH."""
    if not path.startswith(("tests/", *ON_PATH)):
        return ""
    places = [*map(str, PurePosixPath(path).parents[:-1]), *ON_PATH]
    return next((found for place in places if (found := modules.get(f"{place}/{name}".replace("/", "."), ""))), "")


def module_of(path: str) -> str:
    """Return the name of the module that a Python file is, from the root."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_test(path: str) -> bool:
    """Whether pytest collects this file."""
    return path.startswith("tests/") and path.endswith(".py") and PurePosixPath(path).name.startswith("test_")
