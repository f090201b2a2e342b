"""The dashboard's panels and their queries, with Grafana's variables filled in as Grafana does."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DASHBOARD = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "trainyard.json"


@dataclass(frozen=True)
class Target:
    """One query of a panel, and what its lines are called."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A panel's title and queries."""

    title: str
    targets: tuple[Target, ...]


def filled(expression: str, values: Mapping[str, str]) -> str:
    """Return an expression with `$name` replaced for each name, longer names first."""
    for name in sorted(values, key=len, reverse=True):
        expression = expression.replace(f"${name}", values[name])
    return expression


def panels(values: Mapping[str, str]) -> list[Panel]:
    """Return the dashboard's panels, their variables replaced."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [
        Panel(one["title"], tuple(Target(filled(t["expr"], values), t["legendFormat"]) for t in one["targets"]))
        for one in found
    ]
