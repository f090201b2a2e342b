"""Reference of the chart's parts: what each creates, what switches it on, and where its keys are listed."""

from pathlib import Path

import yaml

from hack.reference.markdown import NOTE, page, table

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "trainyard"
README = "../../charts/trainyard/README.md"
ON = {True: "on", False: "off", "": "on, unless another job is"}  # what `enabled` is by default


def write() -> str:
    """Return the page."""
    sections = yaml.safe_load((ROOT / "hack/schemas/readme.yaml").read_text())["sections"]
    return page(
        "# Values of the chart",
        "For writing a values file: the parts of `charts/trainyard`, and where each one's keys are listed with "
        f"type, default and meaning: in the [chart's README]({README}), generated from the annotated values. {NOTE}",
        "## Where to start",
        [
            f"- {section('What most runs set')}: the few keys, each with an example",
            f"- {section('Settings of pods')}: environment, volumes and placement, the same for every kind of pod",
            "- under `global.training.config`: [trainer settings](trainer-settings.md)",
            "- under `dataset.settings`: [prepare settings](prepare-settings.md)",
        ],
        "## Parts",
        table(("part", "what it is", "by default", "its keys"), parts(sections)),
        "## What all parts share",
        table(("keys under", "section"), shared(sections)),
        "Next: [what the values are for](../chart.md), [complete files for clusters](../clusters.md).",
    )


def section(title: str) -> str:
    """Return a link to a section of the chart's README."""
    anchor = "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")
    return f"[{title}]({README}#{anchor})"


def parts(sections: list[dict[str, list[str]]]) -> list[tuple[str, str, str, str]]:
    """Return a row for each part of the chart."""
    rows = []
    for name in (one["name"] for one in yaml.safe_load((CHART / "Chart.yaml").read_text())["dependencies"]):
        folder = CHART / "charts" / name
        chart = yaml.safe_load((folder / "Chart.yaml").read_text())
        if chart["type"] == "library":
            continue
        enabled = ON[yaml.safe_load((folder / "values.yaml").read_text())["enabled"]]
        rows.append(
            (
                f"`{name}`",
                chart["description"],
                enabled,
                ", ".join(section(str(one["title"])) for one in sections if name in one["keys"]),
            )
        )
    return rows


def shared(sections: list[dict[str, list[str]]]) -> list[tuple[str, str]]:
    """Return a row for each section of keys that several parts read."""
    own = {
        str(one["title"]): [key for key in one["keys"] if key.startswith(("global.", "networkPolicy"))]
        for one in sections
    }
    return [(", ".join(f"`{key}`" for key in keys), section(title)) for title, keys in own.items() if keys]
