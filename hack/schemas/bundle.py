"""Close and complete the JSON schema that helm-values-schema-json makes from annotated values.

An annotation says `$ref:#/$defs/NAME`. The pool of such names comes from defs.yaml, the umbrella's own values
(`training` and `placement`), the subcharts, the trainers' settings, and Kubernetes (`k8s.NAME`). A bundled schema
carries those that it uses, so that a typo under a disabled subchart, in a trainer's setting or deep in an affinity is
an error too.

Two schemas come of it. Editors get the whole one. Helm gets a loose one: it leaves names and texts, of which the
chart's templates speak in plain words (keys.py), and holds types, ranges and all that is Kubernetes' own.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

REF = "#/$defs/"
KUBERNETES = "io.k8s.api.core.v1."
QUANTITY = {"oneOf": [{"type": "string"}, {"type": "number"}]}
# The group that nothing matches is an example: Helm prints patterns as they are
AMOUNT = r"^(such as 500m or 16Gi){0}[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE])?$"
# What the API server checks by code, not by its schema: a wrong word here would be found only when a pod is made
EFFECTS = ["", "NoSchedule", "PreferNoSchedule", "NoExecute"]
SELECTORS = ["In", "NotIn", "Exists", "DoesNotExist"]
ENUMS = {
    "k8s.Toleration": {"operator": ["", "Exists", "Equal"], "effect": EFFECTS},
    "k8s.NodeSelectorRequirement": {"operator": [*SELECTORS, "Gt", "Lt"]},
    "k8s.LabelSelectorRequirement": {"operator": SELECTORS},
    "k8s.TopologySpreadConstraint": {"whenUnsatisfiable": ["DoNotSchedule", "ScheduleAnyway"]},
}
# A claim that a pod brings has no other metadata: the API server refuses the rest of ObjectMeta
CLAIM_METADATA = ("labels", "annotations")
# Kept beside a $ref; what else the generator adds there (type, additionalProperties) is the referred schema's business.
BESIDE_REF = ("$ref", "description")


def trim(node: Any) -> Any:
    """Drop from a schema what stands beside a $ref without meaning."""
    if isinstance(node, list):
        return [trim(item) for item in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("$ref"), str):
        return {key: node[key] for key in BESIDE_REF if key in node}
    return {key: trim(value) for key, value in node.items()}


def references(node: Any) -> Iterator[str]:
    """Yield the names in the pool that a schema refers to."""
    if isinstance(node, dict):
        ref = node.get("$ref")
        if isinstance(ref, str):
            yield ref.removeprefix(REF)
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


def without_required(node: Any) -> Any:
    """Drop `required`: what a user leaves out comes from defaults, a recipe, or a check in words."""
    if isinstance(node, list):
        return [without_required(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {k: without_required(v) for k, v in node.items() if not (k == "required" and isinstance(v, list))}


def settings(schema: Schema, *chart_sets: str) -> Schema:
    """Turn a schema of the trainers into that of a values key; what the chart sets itself is not a user's key."""
    closed: Schema = without_required(schema)
    closed = {key: value for key, value in closed.items() if key not in ("$schema", "$defs", "title")}
    properties = {key: value for key, value in closed["properties"].items() if key not in chart_sets}
    return closed | {"properties": properties}


def from_kubernetes(definitions: Schema) -> Schema:
    """Name Kubernetes' definitions as `k8s.NAME`, without their long descriptions."""

    def short(name: str) -> str:
        return "k8s." + name.removeprefix(KUBERNETES).rsplit(".", 1)[-1]

    def convert(node: Any, named: bool = False) -> Any:
        if isinstance(node, list):
            return [convert(item) for item in node]
        if not isinstance(node, dict):
            return node
        if node == QUANTITY:
            # The operators' CRDs know no fractions of numbers, and look at texts more closely
            return {"oneOf": [{"type": "string", "pattern": AMOUNT}, {"type": "integer"}]}
        if "$ref" in node and not named:
            return {"$ref": REF + short(node["$ref"].removeprefix("#/definitions/"))}
        # Below `properties` a key is a field's name, and `description` there may be one.
        return {k: convert(v, k == "properties") for k, v in node.items() if named or k != "description"}

    found = {short(name): convert(schema) for name, schema in definitions.items()}
    for name, enums in ENUMS.items():
        for key, values in enums.items():
            found[name]["properties"][key]["enum"] = values
    whole = found["k8s.ObjectMeta"]
    kept = {key: whole["properties"][key] for key in CLAIM_METADATA}
    found["k8s.PersistentVolumeClaimTemplate"]["properties"]["metadata"] = whole | {"properties": kept}
    return found


def is_text(schema: Schema) -> bool:
    """Whether a definition is a text of which the chart's own words speak."""
    return "say" in schema


def said_in_words(schema: Schema) -> bool:
    """Whether the chart's own words speak of a value of another type."""
    return schema.get("type") in ("array", "object", "number", "integer", "boolean") and "enum" not in schema


def holds_texts(schema: Schema) -> bool:
    """Whether a value is a map of texts under a user's own names."""
    return schema.get("additionalProperties") == {"type": "string"} and "properties" not in schema


def holds_maps(schema: Schema, pool: Schema) -> bool:
    """Whether a value is a list of maps, for whose items of another type the chart's own words speak."""
    items = schema.get("items", {})
    target = pool.get(items["$ref"].removeprefix(REF), {}) if "$ref" in items else items
    return schema.get("type") == "array" and target.get("type") == "object"


NAMED = ("properties", "$defs", "patternProperties")  # maps whose keys are names


def loose(node: Any, pool: Schema, named: bool = False, spoken: bool = True) -> Any:
    """Leave out of a schema what the chart's templates say: unknown keys, texts, and most values of another type.

    `named`: a map whose keys are names; `spoken`: the templates look at the type of this value. They do not at items of
    lists or at alternatives, which keep theirs.
    """
    if isinstance(node, list):
        return [loose(item, pool, spoken=False) for item in node]
    if not isinstance(node, dict):
        return node
    ref = node.get("$ref")
    if not named and isinstance(ref, str):
        target = pool[ref.removeprefix(REF)]
        return {key: node[key] for key in node if key != "$ref"} if is_text(target) else node
    out = {key: loose(value, pool, not named and key in NAMED, named) for key, value in node.items()}
    if named:
        return out
    if spoken and holds_maps(out, pool):
        out["items"] = {"if": {"type": "object"}, "then": out["items"]}
    if out.get("additionalProperties") is False or holds_texts(out):
        del out["additionalProperties"]
    if spoken and said_in_words(out):
        del out["type"]
    return out


def plain(node: Any) -> Any:
    """Say to editors what a pattern asks for, by the keyword that they know."""
    if isinstance(node, list):
        return [plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: plain(value) for key, value in node.items() if key not in ("say", "numbers")}
    return out | ({"patternErrorMessage": f"write {node['say']}"} if is_text(node) and "pattern" in node else {})


def bundle(schema: Schema, pool: Schema) -> Schema:
    """Give a schema the definitions that it uses, directly or through others."""
    used: Schema = {}
    waiting = set(references(schema))
    while waiting:
        name = waiting.pop()
        if name not in pool:
            raise SystemExit(f"schemas: nothing defines {REF}{name}; see hack/schemas/defs.yaml")
        used[name] = pool[name]
        waiting |= set(references(pool[name])) - used.keys()
    return schema | {"$defs": dict(sorted(used.items()))}
