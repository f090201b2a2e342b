"""What test files need and how long they take: by their marks, and by the last whole run of each on this machine."""

import ast
from collections.abc import Mapping
from typing import NamedTuple

from hack.quick.changes import ROOT
from tests import costs

PLAIN, TRAINS = 4.0, 20.0  # seconds of a file that says nothing, and of one that starts trainers


class Elsewhere(NamedTuple):
    """What files with a mark are for, what runs them, and where all of them are."""

    place: str
    run_by: str
    all_of_them: tuple[str, ...] = ()


ELSEWHERE = {
    "e2e": Elsewhere("the cluster", "scripts/test", ("tests/e2e",)),
    "images": Elsewhere("the built images", "scripts/test", ("tests/images",)),
    "root": Elsewhere("what root installs", "scripts/test", ("-m", "root")),
    "soak": Elsewhere("the soak", "scripts/test -m soak"),
}


class Marks(NamedTuple):
    """What the marks of a whole file say."""

    takes: float = PLAIN
    elsewhere: str = ""  # which of ELSEWHERE


def marks(source: str) -> Marks:
    """Read what is assigned to pytestmark; raises SyntaxError."""
    takes, elsewhere = TRAINS if "from conftest import" in source or "from forked import" in source else PLAIN, ""
    for statement in ast.parse(source).body:
        if not (isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"):
            continue
        for node in ast.walk(statement.value):
            name = ast.unparse(node).removeprefix("pytest.mark.") if isinstance(node, ast.Attribute) else ""
            elsewhere = name if name in ELSEWHERE else elsewhere
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.takes":
                takes = float(ast.literal_eval(node.args[0]))
    return Marks(takes, elsewhere)


def measured() -> dict[str, float]:
    """Return the seconds of each file that has been run on this machine."""
    return {name: float(cost["seconds"]) for name, cost in costs.read()["files"].items()}


def seconds(path: str, known: Mapping[str, float], slowness: float) -> float:
    """Return how long a file takes: as measured, else as its mark says of a machine that is not slow."""
    return known.get(path) or slowness * marks((ROOT / path).read_text()).takes
