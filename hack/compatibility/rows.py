"""The rows of docs/compatibility.md (rows.yaml), and which versions of their programs are built and locked now."""

import functools
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLACES = ("hack/programs", "hack/flux", "hack/versions/*/*")  # of Go modules; the first are what every change runs with


@functools.cache
def rows() -> list[dict[str, Any]]:
    """Return the rows in their order."""
    found: list[dict[str, Any]] = yaml.safe_load((HERE / "rows.yaml").read_text())
    return found


def modules() -> dict[str, str]:
    """Return the Go module of each program."""
    return {name: module for row in rows() for name, module in row.get("modules", {}).items()}


def packages() -> list[str]:
    """Return the Python packages."""
    return [name for row in rows() for name in row.get("packages", [])]


def programs(row: dict[str, Any]) -> list[str]:
    """Return the programs and packages of a row whose versions ran."""
    return [*row.get("modules", {}), *row.get("packages", [])]


def built() -> dict[str, list[str]]:
    """Return the versions of each program that are built, and of each package that is locked; the usual one first."""
    found: dict[str, list[str]] = {name: [] for row in rows() for name in programs(row)}
    for place in PLACES:
        for path in sorted(ROOT.glob(f"{place}/go.mod"), reverse=True):
            for name, version in built_by(path).items():
                found[name].append(version)
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        if package["name"] in packages():
            found[package["name"]].append(package["version"].partition("+")[0])
    return found


def built_by(path: Path) -> dict[str, str]:
    """Return the versions of the programs that a go.mod builds; on others it may only depend."""
    text, found = path.read_text(), {}
    for name, module in modules().items():
        version = re.search(rf"^\s*{re.escape(module)} v(\S+)", text, re.M)
        if version and re.search(rf"^(?:tool |\t){re.escape(module)}(?:/\S+)?$", text, re.M):
            found[name] = version[1]
    return found
