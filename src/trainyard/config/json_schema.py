"""JSON schemas generated from the models of settings; the charts validate their values against them."""

from typing import Any

from pydantic import BaseModel

from trainyard.config.layers import Tree


def without_references(model: type[BaseModel]) -> Tree:
    """Return the model's JSON schema with every reference replaced by what it names, and `this or null` by this."""
    raw = model.model_json_schema(by_alias=True)
    result: Tree = _inlined(raw, raw.get("$defs", {}))
    return result


def partial(node: Any) -> Any:
    """Return a schema in which no key is required, without defaults, and without titles beside a type."""
    if isinstance(node, list):
        return [partial(item) for item in node]
    if not isinstance(node, dict):
        return node
    dropped = {"required", "default", *(["title"] if "type" in node else [])}
    result = {key: partial(value) for key, value in node.items() if key not in dropped and key != "properties"}
    properties = {name: partial(value) for name, value in node.get("properties", {}).items()}
    return {**result, "properties": properties} if properties else result


def _inlined(node: Any, definitions: Tree) -> Any:
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**definitions[node["$ref"].rsplit("/", 1)[-1]], **{k: v for k, v in node.items() if k != "$ref"}}
    alternatives = [item for item in node.get("anyOf", []) if item != {"type": "null"}]
    if len(alternatives) == 1:
        rest = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        return _inlined({**alternatives[0], **rest}, definitions)
    return {key: _inlined(value, definitions) for key, value in node.items() if key != "$defs"}
