"""Which of the static checks a change concerns; hack/lint has the checks themselves."""

import fnmatch
from collections.abc import Collection

from hack.quick.changes import ROOT

SETTINGS = ("src/trainyard/config/", "src/trainyard/prepare/settings.py")
# By the check's name in hack/lint: what it reads. Folders end with a slash; a star is anything.
READS = {
    "ruff": ("*",),
    "ruff format": ("*",),
    "shellcheck": ("*",),  # which hack/lint finds by their first lines
    "mypy 3.11": ("src/*.py", "trainers/*.py", "pyproject.toml", "uv.lock"),
    "imports run downwards": ("src/*.py", "pyproject.toml"),
    "yamllint": ("*.yaml", "*.yml", ".yamllint"),
    "actionlint": (".github/",),
    "pins": (".github/", ".ci/", "images/", "hack/", "scripts/", "uv.lock"),
    "uv.lock current": ("pyproject.toml", "uv.lock"),
    "schemas and chart READMEs current": ("charts/", "hack/schemas/", *SETTINGS),
    "reference pages current": (
        "docs/reference/", "hack/reference/", "hack/schemas/readme.yaml", "charts/*/values.yaml", *SETTINGS,
        "src/trainyard/core/exits.py", "Makefile", "src/trainyard/cli.py", "src/trainyard/cluster/",
        "src/trainyard/*/command.py", "trainers/ddp.py", "trainers/hvd.py",
        "src/trainyard/inference/",
        "src/trainyard/report/scaling.py", "src/trainyard/pod/preflight.py", "src/trainyard/pod/mpi.py",
    ),
    "compatibility page current": (
        "docs/compatibility.md", "hack/compatibility/", "hack/programs/go.mod", "hack/versions/", "hack/flux/go.mod",
        "uv.lock",
    ),
    "images' requirements current": ("pyproject.toml", "uv.lock", "images/*requirements*", "hack/images/"),
}  # fmt: skip
UMBRELLA = "charts/trainyard"
ALL_UNITS = "tests/**/*_test.yaml"


def concerned(changed: Collection[str]) -> list[str]:
    """Return the names of the checks that read one of the changed files."""
    return [name for name, reads in READS.items() if any(_reads(one, path) for one in reads for path in changed)]


def _reads(pattern: str, path: str) -> bool:
    return path == pattern or fnmatch.fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern)


def chart_units(changed: Collection[str]) -> dict[str, list[str]]:
    """Return the charts whose unit tests a change concerns, with the patterns of these tests below them.

    A part's own tests render it alone, and those of its folder in the umbrella beside others; what the parts share
    concerns all.
    """
    parts = sorted(one.parent.name for one in (ROOT / UMBRELLA / "charts").glob("*/tests"))
    found: dict[str, set[str]] = {}
    for path in changed:
        folder, _, rest = path.removeprefix(f"{UMBRELLA}/charts/").partition("/")
        if not path.startswith(f"{UMBRELLA}/") or path.endswith(".md"):
            continue
        if path.startswith(f"{UMBRELLA}/charts/common/"):
            return {UMBRELLA: [ALL_UNITS]} | {f"{UMBRELLA}/charts/{part}": [ALL_UNITS] for part in parts}
        if path.startswith(f"{UMBRELLA}/charts/{folder}/"):
            own = rest.startswith("tests/") and path.endswith("_test.yaml")
            found.setdefault(f"{UMBRELLA}/charts/{folder}", set()).add(rest if own else ALL_UNITS)
            if not own and (ROOT / UMBRELLA / "tests" / folder).is_dir():
                found.setdefault(UMBRELLA, set()).add(f"tests/{folder}/**/*_test.yaml")
        elif path.startswith(f"{UMBRELLA}/tests/") and path.endswith("_test.yaml"):
            found.setdefault(UMBRELLA, set()).add(path.removeprefix(f"{UMBRELLA}/"))
        else:
            found.setdefault(UMBRELLA, set()).add(ALL_UNITS)
    return {chart: [ALL_UNITS] if ALL_UNITS in units else sorted(units) for chart, units in found.items()}
