"""The book of keys from which the chart's templates say what is wrong with a name or a text (templates/_keys.tpl)."""

import re
from typing import Any

from bundle import REF, Schema, holds_maps, holds_texts, is_text, said_in_words

# A value is one of: a map of further keys, "#NAME" for a shared map, "=FORMAT" for a text, "[]=FORMAT" for a list of
# texts, "[]env" for environment variables, "[]{}" for a list of maps, "[]" for any list, "{}text" for a map of texts,
# "{}=FORMAT" for labels, "{}" for any map, 2 for a number, 3 for a whole one, 4 for true or false, 1 for what Helm's
# schema says.
Shape = dict[str, Any] | str | int
TYPES: dict[str, str | int] = {"object": "{}", "number": 2, "integer": 3, "boolean": 4}
ENVIRONMENT = {"$ref": f"{REF}env-var"}
OTHER = "~"  # below it stand pairs of a pattern and a shape, for keys that users name


class Book:
    """Collects the shapes of all keys, and the maps and formats that they refer to."""

    def __init__(self, pool: Schema) -> None:
        self._pool = pool
        self.shared: dict[str, Shape] = {}
        self.formats: dict[str, Schema] = {}

    def shape(self, schema: Schema) -> Shape:
        """Return the shape of a value."""
        if "$ref" in schema:
            return self._named(schema["$ref"].removeprefix(REF))
        if "properties" in schema:
            return self._map(schema)
        if schema.get("type") == "array":
            return self._list(schema)
        if isinstance(texts := schema.get("additionalProperties"), dict):
            return "{}text" if holds_texts(schema) else f"{{}}{self.shape(texts)}"
        return TYPES[schema["type"]] if said_in_words(schema) else 1

    def _list(self, schema: Schema) -> Shape:
        if schema.get("items") == ENVIRONMENT:
            return "[]env"
        if holds_maps(schema, self._pool):
            return "[]{}"
        inner = self.shape(schema.get("items", {}))
        return f"[]{inner}" if isinstance(inner, str) and inner.startswith("=") else "[]"

    def _named(self, name: str) -> Shape:
        """Return the shape of a definition; Kubernetes' own are closed by Helm's schema."""
        if name.startswith("k8s."):
            return 1
        target = self._pool[name]
        if is_text(target):
            self.formats[name] = {key: target[key] for key in ("pattern", "say", "numbers") if key in target}
            return f"={name}"
        if "properties" not in target:
            return self.shape(target)
        if name not in self.shared:
            self.shared[name] = 1  # it may refer to itself
            self.shared[name] = self._map(target)
        return f"#{name}"

    def _map(self, schema: Schema) -> dict[str, Any]:
        found: dict[str, Any] = {key: self.shape(value) for key, value in schema["properties"].items()}
        if others := schema.get("patternProperties"):
            found[OTHER] = [[pattern, self.shape(value)] for pattern, value in others.items()]
        return found


def book(umbrella: Schema, pool: Schema, lists: dict[str, str], maps: dict[str, str], needed: list[str]) -> Schema:
    """Return what files/keys.json holds."""
    made = Book(pool)
    keys = made.shape(umbrella)
    assert isinstance(keys, dict)
    return {
        "keys": keys, "shared": made.shared, "formats": made.formats, "lists": lists, "maps": maps, "needed": needed
    }  # fmt: skip


# Null drops these, and the operator's or the cluster's own default holds
DROPPED = re.compile(r"\.resources\.|^mpijob\.runPolicy\.backoffLimit$")
# Nothing in their place is no default: the chart reads what `""` says
SAID_BY_NOTHING = ("global.storage.gid", "pytorchjob.enabled")


def needed(values: dict[str, Any], path: str = "") -> list[str]:
    """Return the dotted paths of plain values without which a template would read 0, false or nothing."""
    found: list[str] = []
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            found += needed(value, here)
        elif not isinstance(value, list) and (value or here in SAID_BY_NOTHING) and not DROPPED.search(here):
            found.append(here)
    return found


RANKS = ("global", "pytorchjob", "mpijob", "trainjob")


def where(keys: Schema, shared: Schema, most: int = 6) -> dict[str, list[str]]:
    """Return the paths at which each key stands, those for all parts first, then those of jobs.

    What a job overrides of the training stands under `global` alone.
    """
    found: dict[str, list[str]] = {}

    def walk(node: Schema, path: str) -> None:
        for key, shape in node.items():
            if key == OTHER:
                continue
            here = f"{path}.{key}" if path else key
            found.setdefault(key, []).append(here)
            inner = shared[shape[1:]] if isinstance(shape, str) and shape.startswith("#") else shape
            if isinstance(inner, dict) and shape != "#training":
                walk(inner, here)

    walk(keys, "")

    def rank(path: str) -> int:
        return RANKS.index(part) if (part := path.partition(".")[0]) in RANKS else len(RANKS)

    return {key: sorted(paths, key=rank)[:most] for key, paths in sorted(found.items())}
