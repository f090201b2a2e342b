"""The chart's README: the keys that most people set, then all keys of all parts, by what they are for (readme.yaml)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from bundle import REF, Schema

# A row for each of these as a whole: their keys stand in another table, or in Kubernetes' own documents
WHOLE = (
    "training", "trainer-config", "placement", "dataset-placement", "pod-security", "resources", "service-account",
)  # fmt: skip
KINDS = {"string": "text", "integer": "number", "boolean": "true, false", "array": "list", "object": "map"}


class Row(NamedTuple):
    """A key, its type, default and description."""

    path: str
    kind: str
    default: str
    text: str


def chart(schema: Schema, pool: Schema, values: dict[str, Any]) -> str:
    """Return the page, from the whole schema and the default values of the umbrella ('') and the subcharts."""
    texts = yaml.safe_load((Path(__file__).parent / "readme.yaml").read_text())
    merged: dict[str, Any] = {name: part for name, part in values.items() if name}
    merged |= {key: {**merged.get(key, {}), **part} for key, part in values[""].items() if isinstance(part, dict)}
    found = list(rows(schema, pool, merged, ""))
    every, owners = pool["pod-settings"]["properties"], texts["pods"]["owners"]
    shared = [row for row in found if row.path.rpartition(".")[2] in every and row.path.rpartition(".")[0] in owners]
    rest = [row for row in found if row not in shared]
    prefixes = [prefix for one in texts["sections"] for prefix in one["keys"]]
    assert all(fits(row.path, prefixes) for row in rest), "readme.yaml has no section for a key"
    parts = [texts["intro"], first(texts["first"])]
    parts += [section(one, rest, texts["sections"]) for one in texts["sections"]]
    return "\n".join([*parts, pods(texts["pods"], shared), trainer(texts["trainer"], pool)])


def first(keys: list[list[str]]) -> str:
    """Lay out the few keys that most people set."""
    lines = [f"| `{key}` | `{example}` | {text} |" for key, example, text in keys]
    head = ["## What most runs set", "", "| key | for example | what it says |", "| --- | --- | --- |"]
    return "\n".join([*head, *lines, ""])


def fits(path: str, prefixes: list[str]) -> int:
    """Return the length of the longest of these beginnings that a path has."""
    return max((len(one) for one in prefixes if path == one or path.startswith(f"{one}.")), default=0)


def section(one: dict[str, Any], found: list[Row], sections: list[dict[str, Any]]) -> str:
    """Lay out a section; a key belongs to the one with the longest beginning of its path."""
    best = {row.path: max(fits(row.path, other["keys"]) for other in sections) for row in found}
    mine = [row for row in found if 0 < best[row.path] == fits(row.path, one["keys"])]
    mine.sort(key=lambda row: next(i for i, prefix in enumerate(one["keys"]) if fits(row.path, [prefix])))
    intro = [one["intro"].strip(), ""] if "intro" in one else []
    return "\n".join([f"## {one['title']}", "", *intro, *table(mine), ""])


def pods(texts: dict[str, Any], shared: list[Row]) -> str:
    """Lay out the settings that every kind of pod has."""
    named = [row._replace(path=row.path.rpartition(".")[2]) for row in shared if row.path.startswith("global.")]
    owners = [f"- `{where}`: {what}" for where, what in texts["owners"].items()]
    return "\n".join(["## Settings of pods", "", texts["intro"], *owners, "", *table(named), ""])


def trainer(intro: str, pool: Schema) -> str:
    """Lay out the trainer's own settings, from its schema."""
    lines = [f"| `{row.path}` | {row.kind} | {row.text} |" for row in rows(pool["trainer-config"], pool, {}, "")]
    head = ["## The trainer's settings", "", intro, "", "| key | type | what it says |", "| --- | --- | --- |"]
    return "\n".join([*head, *lines, ""])


def table(found: list[Row]) -> list[str]:
    """Lay rows out."""
    lines = [f"| `{row.path}` | {row.kind} | {row.default} | {row.text} |" for row in found]
    return ["| key | type | default | what it says |", "| --- | --- | --- | --- |", *lines]


def rows(schema: Schema, pool: Schema, values: Any, path: str) -> Iterator[Row]:
    """Yield the keys below a schema, in the order of the values; what has no default comes last."""
    order = list(values) if isinstance(values, dict) else []
    properties = schema["properties"]
    for key in sorted(properties, key=lambda one: order.index(one) if one in order else len(order)):
        value = properties[key]
        here = f"{path}.{key}" if path else key
        if here == "common" or (key == "global" and path):
            continue
        name = value.get("$ref", "").removeprefix(REF)
        target = pool.get(name, {}) if name else value
        default = values.get(key) if isinstance(values, dict) else None
        if "properties" in target and not name.startswith("k8s.") and name not in WHOLE:
            yield from rows(target, pool, default, here)
        else:
            text = " ".join(value.get("description", target.get("description", "")).split())
            yield Row(here, kind(target, name), shown(default), text.replace("|", "\\|"))


def kind(target: Schema, name: str) -> str:
    """Return a key's type, in a word, or those of its alternatives."""
    if "const" in target:
        return f"`{target['const']}`"
    if "anyOf" in target:
        return " or ".join(dict.fromkeys(kind(one, name) for one in target["anyOf"]))
    types = "object" if name.startswith("k8s.") or "properties" in target else target.get("type", "string")
    return " or ".join(dict.fromkeys(KINDS.get(one, one) for one in (types if isinstance(types, list) else [types])))


def shown(default: Any) -> str:
    """Return a default value as it would be written; what is empty says nothing."""
    return "" if default in (None, "", [], {}) else f"`{json.dumps(default)}`".replace("|", "\\|")
