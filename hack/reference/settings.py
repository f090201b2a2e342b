"""Reference of the trainers' and the preparation's settings, from their models (trainyard.config, .prepare)."""

import json
from collections.abc import Iterator
from typing import Any

from hack.reference.markdown import NOTE, page, table
from trainyard import config
from trainyard.config.json_schema import without_references
from trainyard.prepare.settings import Preparation

Schema = dict[str, Any]
HEAD = ("key", "type", "default", "meaning")
LIMITS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "exclusiveMaximum": "below {}"}
WORDS = {"boolean": "`true`, `false`", "integer": "whole number", "string": "text", "object": "map"}


def trainer() -> str:
    """Return the page of the trainers' settings."""
    schema = without_references(config.Config)
    single = {key: one for key, one in schema["properties"].items() if "properties" not in one}
    sections = [part for key, one in schema["properties"].items() if key not in single for part in _section(key, one)]
    return page(
        "# Trainer settings",
        "For changing how a run trains: every key of a config file, of `--set KEY=VALUE` and of the chart's "
        f"`global.training.config`. {NOTE}",
        "A setting comes from the defaults below, then the recipe ([recipes](../recipes.md)), then the file, then "
        "`--set`; each overrides the one before. Without a default a key is unset. An unknown key or a value of the "
        "wrong kind is refused with the remedy. `trainyard config --recipe NAME` prints the result.",
        "## The run as a whole",
        table(HEAD, _rows(single, "")),
        *sections,
        "Next: [recipes and your own settings](../recipes.md), [preparation's settings](prepare-settings.md), "
        "[values of the chart](values.md).",
    )


def prepare() -> str:
    """Return the page of the preparation's settings."""
    found = without_references(Preparation)["properties"]
    source, out = found.pop("source"), found.pop("out")
    return page(
        "# Prepare settings",
        "For turning images into shards: every key of `trainyard prepare build`, by `--config FILE` "
        f"or `--set KEY=VALUE`. {NOTE}",
        "On a cluster `source` is `dataset.source`, everything else but `out` is under `dataset.settings`, and "
        "`out` is `/data/` and `global.dataset.name`. Without a default a key is unset.",
        "## Settings",
        table(HEAD, _rows({**found, "out": out}, "")),
        "## Source",
        source["description"],
        table(HEAD, _rows(source["properties"], "source")),
        "Next: [bring your data](../dataset.md), [trainer settings](trainer-settings.md).",
    )


def _section(key: str, schema: Schema) -> Iterator[str | list[str]]:
    yield f"## {key}"
    yield schema["description"]
    yield table(HEAD, _rows(schema["properties"], key))


def _rows(properties: dict[str, Schema], path: str) -> Iterator[tuple[str, str, str, str]]:
    for key, schema in properties.items():
        here = f"{path}.{key}" if path else key
        if "properties" in schema:
            yield f"`{here}`", "map", "", schema.get("description", "")
            yield from _rows(schema["properties"], here)
        else:
            yield f"`{here}`", kind(schema), default(schema), schema.get("description", "")


def kind(schema: Schema) -> str:
    """Return what a value may be, in words."""
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {'type': 'string'}))}"
    limits = [text.format(_plain(schema[key])) for key, text in LIMITS.items() if key in schema]
    word = WORDS.get(schema.get("type", "string"), schema.get("type", "text"))
    return " ".join([word, *limits])


def default(schema: Schema) -> str:
    """Return a default as a config file has it; nothing where there is none."""
    value = schema.get("default")
    return "" if value is None or "default" not in schema else f"`{json.dumps(value, ensure_ascii=False)}`"


def _plain(number: float) -> str:
    return f"{number:g}" if abs(number) < 1e6 else f"{int(number):,}"
