"""Which test files a change concerns, how nearly, and which of them fit into the time: pure functions."""

import heapq
from collections.abc import Callable, Collection, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from hack.quick.links import IMPORTS, Users, is_test

FILLED = 0.8  # of the workers' time


class Concerned(NamedTuple):
    """A test file, how far it is from the change, and the way from it to the changed file."""

    far: float
    path: str
    way: tuple[str, ...]

    def why(self) -> str:
        """Say in words what brought it in."""
        if len(self.way) < 2:
            return "changed" if self.way else "tests it by its name"
        ends = [self.way[-1]] if len(self.way) == 2 else [self.way[1], self.way[-1]]
        return " < ".join(ends) if len(self.way) < 4 else " < .. < ".join(ends)


def concerned(changed: Collection[str], users: Users) -> list[Concerned]:
    """Return the test files that a change concerns, the nearest first.

    A change of a file concerns who uses it, who uses one of its folders, and who uses those, however far.
    """
    reached: dict[str, tuple[float, str]] = {}  # how far, and from where
    waiting = [(far, path, "") for start in changed for far, path in _begin(start, users)]
    heapq.heapify(waiting)
    while waiting:
        far, path, before = heapq.heappop(waiting)
        if path in reached:
            continue
        reached[path] = far, before
        for name in (path, *(_folders(path) if path in changed else ())):
            for user, step in users.get(name, {}).items():
                heapq.heappush(waiting, (far + step, user, path))
    tests = [Concerned(far, path, tuple(_way(path, reached))) for path, (far, _) in reached.items() if is_test(path)]
    return sorted(one._replace(far=0.0) if mirrors(one.path, changed) else one for one in tests)


def _begin(path: str, users: Users) -> Iterator[tuple[float, str]]:
    """Yield a changed file itself; and what a package's other files belong to, its modules."""
    yield 0.0, path
    if path.startswith("tests/") or path.endswith((".py", ".md")):
        return
    for folder in _folders(path):
        if modules := [one for one in users if one.endswith(".py") and f"{PurePosixPath(one).parent}/" == folder]:
            yield from ((IMPORTS, one) for one in modules)
            return


def _folders(path: str) -> list[str]:
    return [f"{folder}/" for folder in map(str, PurePosixPath(path).parents[:-1])]


def _way(path: str, reached: dict[str, tuple[float, str]]) -> Iterator[str]:
    while path:
        yield path
        path = reached[path][1]


def mirrors(test: str, changed: Collection[str]) -> bool:
    """Whether a test file is changed, or is that of a changed module: tests/a/test_b.py of a/b.py."""
    folder, name = PurePosixPath(test).parent.relative_to("tests"), PurePosixPath(test).stem.removeprefix("test_")
    return test in changed or f"{folder}/{name}.py" in changed or f"{folder}/{name}/__init__.py" in changed


def fit(
    found: Collection[Concerned], cost: Callable[[str], float], seconds: float, workers: int
) -> tuple[list[Concerned], list[Concerned]]:
    """Take the nearest, of those the cheapest, for as long as there is time; return them, and who is left out.

    A file runs on one worker, so it must fit by itself, and all of them into what the workers have together, of which
    a part is lost where they do not end together.
    """
    taken: list[Concerned] = []
    left: list[Concerned] = []
    spent = 0.0
    for one in sorted(found, key=lambda one: (one.far, cost(one.path), one.path)):
        fits = cost(one.path) <= seconds and spent + cost(one.path) <= FILLED * seconds * workers
        (taken if fits else left).append(one)
        spent += cost(one.path) if fits else 0.0
    return taken, left
