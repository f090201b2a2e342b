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
    """A panel: its number, what it shows, and where it lies on a grid 24 wide (x, y, width, height)."""

    id: int
    title: str
    kind: str
    unit: str
    stacked: bool
    place: tuple[int, int, int, int]
    targets: tuple[Target, ...]


def filled(expression: str, values: Mapping[str, str]) -> str:
    """An expression with `$name` replaced for each name, longer names first."""
    for name in sorted(values, key=len, reverse=True):
        expression = expression.replace(f"${name}", values[name])
    return expression


def panels(values: Mapping[str, str], path: Path = DASHBOARD) -> list[Panel]:
    """The panels of a dashboard, in reading order, its variables replaced."""
    found = []
    for panel in json.loads(path.read_text())["panels"]:
        defaults, grid = panel["fieldConfig"]["defaults"], panel["gridPos"]
        stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "percent"
        targets = tuple(Target(filled(one["expr"], values), one["legendFormat"]) for one in panel["targets"])
        place = (grid["x"], grid["y"], grid["w"], grid["h"])
        found.append(Panel(panel["id"], panel["title"], panel["type"], defaults["unit"], stacked, place, targets))
    return sorted(found, key=lambda panel: (panel.place[1], panel.place[0]))


def named(legend: str, labels: Mapping[str, str]) -> str:
    """A legend such as `rank {{rank}}` with the series' labels in it."""
    for label, value in labels.items():
        legend = legend.replace("{{" + label + "}}", value)
    return legend
