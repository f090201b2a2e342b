"""Which of the static checks a change concerns; scripts/lint has the checks themselves."""

import fnmatch
from collections.abc import Collection

from scripts.quick.changes import ROOT

SETTINGS = ("trainers/config/", "trainers/prepare/settings.py")
# By the check's name in scripts/lint: what it reads. Folders end with a slash; a star is anything.
READS = {
    "ruff": ("*",),
    "ruff format": ("*",),
    "shellcheck": ("*",),  # which scripts/lint finds by their first lines
    "mypy 3.11": ("trainers/*.py", "pyproject.toml", "uv.lock"),
    "imports run downwards": ("trainers/*.py", "pyproject.toml"),
    "yamllint": ("*.yaml", "*.yml", ".yamllint"),
    "actionlint": (".github/",),
    "pins": (".github/", ".ci/", "images/", "scripts/", "uv.lock"),
    "uv.lock current": ("pyproject.toml", "uv.lock"),
    "figures current": ("scripts/figures/", "docs/*.svg"),
    "schemas and chart READMEs current": ("charts/", "scripts/schemas/", *SETTINGS),
    "reference pages current": (
        "docs/reference/", "scripts/reference/", "scripts/schemas/readme.yaml", "charts/*/values.yaml", *SETTINGS,
        "trainers/exits.py", "Makefile", "commands/", "trainers/*__main__.py", "trainers/ddp.py", "trainers/hvd.py",
        "trainers/training/command.py", "trainers/inference/evaluate.py", "trainers/inference/predict.py",
        "trainers/report/scaling.py", "trainers/pod/preflight.py", "trainers/pod/mpi.py",
    ),
    "images' requirements current": ("pyproject.toml", "uv.lock", "images/*requirements*", "scripts/images/"),
}  # fmt: skip
UNITS = "charts/trainyard/tests"


def concerned(changed: Collection[str]) -> list[str]:
    """Return the names of the checks that read one of the changed files."""
    return [name for name, reads in READS.items() if any(_reads(one, path) for one in reads for path in changed)]


def _reads(pattern: str, path: str) -> bool:
    return path == pattern or fnmatch.fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern)


def chart_units(changed: Collection[str]) -> list[str]:
    """Return the patterns of the chart's unit tests that a change concerns, below the chart; none, if it is none.

    Those of a subchart render that one alone; what the subcharts share concerns all.
    """
    found: set[str] = set()
    for path in changed:
        parts = path.split("/")
        if path.startswith(f"{UNITS}/") and path.endswith("_test.yaml"):
            found.add(path.removeprefix("charts/trainyard/"))
        elif path.startswith("charts/trainyard/charts/") and (ROOT / UNITS / parts[3]).is_dir():
            found.add(f"tests/{parts[3]}/**/*_test.yaml")
        elif path.startswith("charts/trainyard/") and not path.endswith(".md"):
            return ["tests/**/*_test.yaml"]
    return sorted(found)
