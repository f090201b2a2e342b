"""Names in src/trainyard, and which functions take all settings; lint holds how packages import each other."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT

# What describes or records a whole run, or chooses by many sections; all else takes the sections that it reads
TAKE_ALL = {
    "cluster/cost.py: answer", "cluster/cost.py: read_earlier_run", "cluster/cost.py: rate_of",
    "models/described.py: describe", "models/weights.py: apply_preprocessing", "parallel/__init__.py: connect",
    "run/recorder.py: __init__", "telemetry/sinks.py: __init__",
}  # fmt: skip


def takes_all_settings(function: ast.FunctionDef) -> bool:
    """Whether a parameter is `trainyard.config.Config`."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return any("Config" in ast.unparse(one.annotation).split(" | ") for one in arguments if one.annotation)


def definitions() -> Iterator[tuple[Path, ast.AST]]:
    """All functions and classes of the package, each with its file below it."""
    for path in sorted((ROOT / "src/trainyard").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path.relative_to(ROOT / "src/trainyard"), node


def test_packages_below_training_take_sections_of_the_settings() -> None:
    found = {
        f"{file}: {node.name}"
        for file, node in definitions()
        if isinstance(node, ast.FunctionDef) and takes_all_settings(node)
        if file.parts[0] not in ("config", "training")
    }
    assert found == TAKE_ALL


def test_a_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for file, node in definitions():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(str(file))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def is_predicate(function: ast.FunctionDef) -> bool:
    """Whether it answers yes or no, is a property, or is entered by `with`: a participle reads well there."""
    decorators = {ast.unparse(one).rpartition(".")[2] for one in function.decorator_list}
    returns = ast.unparse(function.returns) if function.returns else ""
    return returns == "bool" or "ContextManager" in returns or bool(decorators & {"property", "contextmanager"})


def test_a_function_is_not_named_by_a_participle_alone() -> None:
    """Unless its value is what the participle says: `overwritten(file)` does not tell who does what, and to what."""
    found = [
        f"{file}: {node.name}"
        for file, node in definitions()
        if isinstance(node, ast.FunctionDef) and re.fullmatch("[a-z]+ed", node.name) and not is_predicate(node)
    ]
    # `seed` is a verb; scripts of users call `guarded`
    assert set(found) == {"core/exits.py: guarded", "parallel/base.py: seed"}


def test_a_file_of_the_package_has_a_name_of_its_own() -> None:
    """But for names that mean the same in each of their folders."""
    names = Counter(path.name for path in (ROOT / "src/trainyard").rglob("*.py"))
    common = {"__init__.py", "base.py", "command.py", "settings.py"}
    assert {name for name, count in names.items() if count > 1} == common


def test_a_file_of_tests_has_a_name_of_its_own() -> None:
    """Unless its folder is a package: of two files with one name pytest collects only the first."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        if not (path.parent / "__init__.py").exists():
            found[path.name].append(path.relative_to(ROOT))
    assert [paths for paths in found.values() if len(paths) > 1] == []
