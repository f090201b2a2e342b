"""Read the settings of a run: recipe, file and flags, in this order, each overriding the one before.

    python -m trainers.config --schema                     the JSON schema of a config file
    python -m trainers.config --recipe demo --set seed=2    the settings that these options give, as YAML

A mistake is a UserError that names the key, its value and the remedy, before anything else starts.
"""

import argparse
import difflib
import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from trainers.config import combinations, parallel_rules
from trainers.config.settings import Config
from trainers.exits import UserError

Tree = dict[str, Any]

# Of each pair only one may be set: an override of one drops what a recipe or file below it says about the other.
ALTERNATIVES = ((("batch", "global"), ("batch", "per_process")), (("epochs",), ("max_steps",)))


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, but `1e-4` is a number, as in YAML 1.2; PyYAML reads it as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every trainer understands."""
    parser.add_argument("--config", metavar="FILE", help="settings as YAML or JSON; `recipe: NAME` in it is their base")
    parser.add_argument("--recipe", metavar="NAME", help=f"named settings: {', '.join(recipe_names())}")
    parser.add_argument(
        "--set", metavar="KEY.PATH=VALUE", action="append", default=[], dest="overrides", help="override one setting"
    )


def load(options: argparse.Namespace) -> Config:
    """Build the settings from parsed command-line options."""
    layers: list[Tree] = []
    if options.config:
        layers.append(read_file(Path(options.config)))
    if options.recipe:
        layers.append({"recipe": options.recipe})
    layers += [parse_override(text) for text in options.overrides]
    if not options.config and not options.recipe:
        raise UserError(f"no settings given: pass --config FILE or --recipe NAME ({', '.join(recipe_names())})")
    return build(*layers)


def build(*layers: Tree) -> Config:
    """Merge layers of raw settings over the recipe they name, and check the result."""
    recipe = next((layer["recipe"] for layer in reversed(layers) if "recipe" in layer), None)
    merged: Tree = {} if recipe is None else read_recipe(recipe)
    for layer in layers:
        merged = merge(merged, {key: value for key, value in layer.items() if key != "recipe"})
    try:
        config = Config.model_validate(_whole_numbers(merged))
    except ValidationError as error:
        raise UserError(describe(error)) from None
    check(config)
    return config


def merge(base: Tree, over: Tree) -> Tree:
    """Lay one tree of settings over another; of two alternatives the upper tree's wins."""
    result = base
    for pair in ALTERNATIVES:
        for mine, other in (pair, pair[::-1]):
            if _get(over, mine) is not None and _get(over, other) is None:
                result = _without(result, other)
    merged: Tree = _overlay(result, over)
    return merged


def check(config: Config) -> None:
    """Refuse combinations that no single key's type can rule out."""
    if (config.batch.global_ is None) == (config.batch.per_process is None):
        raise UserError(
            f"batch: set exactly one of batch.global (now {config.batch.global_}) and batch.per_process "
            f"(now {config.batch.per_process}); with global the result does not depend on the number of processes"
        )
    if (config.epochs is None) == (config.max_steps is None):
        raise UserError(f"set exactly one of epochs (now {config.epochs}) and max_steps (now {config.max_steps})")
    if not config.data.dir and not config.data.dataset:
        raise UserError(
            "data.dir = '': no data; give the folder of a prepared dataset, `sample` or `synthetic`, or data.dataset"
        )
    for key, pair in (("augment.scale", config.augment.scale), ("augment.ratio", config.augment.ratio)):
        if pair[0] > pair[1]:
            raise UserError(f"{key} = {pair}: the first number must not be larger than the second; swap them")
    combinations.check(config)
    parallel_rules.check(config)
    if config.precision == "fp64" and config.model.compile:
        raise UserError("model.compile = True with precision = 'fp64': fp64 is for exact checks; set compile to false")
    if config.precision == "fp16" and config.device == "cpu":
        raise UserError("precision = 'fp16' with device = 'cpu': fp16 needs a GPU; use fp32 or bf16")


def resolve_global_batch(config: Config, world: int) -> int:
    """Samples per step over all processes; refuses what cannot be split over them."""
    size = config.batch.global_ if config.batch.global_ is not None else (config.batch.per_process or 0) * world
    if size < world:
        raise UserError(
            f"batch.global = {size}: smaller than the {world} processes of this run, so some would have nothing to do; "
            f"use batch.global >= {world} or fewer processes"
        )
    return size


def fingerprint(config: Config) -> str:
    """A short hash of all settings: two runs with the same one were asked for the same thing."""
    return hashlib.sha256(json.dumps(as_tree(config), sort_keys=True).encode()).hexdigest()[:16]


def as_tree(config: Config) -> Tree:
    """The settings as plain data, with the names that a file uses; unset alternatives are left out."""
    return config.model_dump(mode="json", by_alias=True, exclude_none=True)


def read_file(path: Path) -> Tree:
    """Read a YAML or JSON file of settings."""
    try:
        tree = yaml.load(path.read_text(), _Loader)
    except FileNotFoundError:
        raise UserError(f"--config {path}: no such file; check the path, or use --recipe NAME") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--config {path}: cannot be read: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"--config {path}: holds {type(tree).__name__}, not settings; write `key: value` lines")
    return {str(key): value for key, value in tree.items()}


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(
        entry.name[:-5] for entry in resources.files("trainers.recipes").iterdir() if entry.name[-5:] == ".yaml"
    )


def read_recipe(name: Any) -> Tree:
    """The raw settings of a recipe."""
    if name not in recipe_names():
        raise UserError(f"recipe = {name!r}: no such recipe; there are {', '.join(recipe_names())}")
    tree: Tree = yaml.load((resources.files("trainers.recipes") / f"{name}.yaml").read_text(), _Loader)
    return tree


def parse_override(text: str) -> Tree:
    """Turn `a.b=value` into {"a": {"b": value}}; the value is read as YAML."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"\w+(\.\w+)*", key):
        raise UserError(f"--set {text}: not KEY.PATH=VALUE; for example --set optimizer.lr=0.2")
    try:
        tree: Any = yaml.load(value, _Loader) if value else ""
    except yaml.YAMLError:
        tree = value
    for part in reversed(key.split(".")):
        tree = {part: tree}
    return dict(tree)


def describe(error: ValidationError) -> str:
    """Say what is wrong with each key, and the remedy, one line per mistake."""
    return "\n".join(
        _describe_one(detail["loc"], detail["type"], detail["msg"], detail["input"]) for detail in error.errors()
    )


def _describe_one(loc: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    key = ".".join(str(part) for part in loc)
    if kind != "extra_forbidden":
        return f"{key} = {value!r}: {message[0].lower()}{message[1:]}"
    known = _keys_at(loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    prefix = "".join(f"{part}." for part in loc[:-1])
    remedy = f"did you mean {prefix}{close[0]}?" if close else f"remove it, or use one of {', '.join(known)}"
    return f"{key} = {value!r}: unknown key; {remedy}"


def _keys_at(loc: tuple[int | str, ...]) -> list[str]:
    """Names that a section of the settings knows."""
    model: type[BaseModel] = Config
    for part in loc:
        fields = {info.alias or name: info for name, info in model.model_fields.items()}
        annotation = fields[str(part)].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return [info.alias or name for name, info in model.model_fields.items()]


def schema() -> Tree:
    """JSON schema of a config file: every key optional, closed at every depth, without references."""
    raw = Config.model_json_schema(by_alias=True)
    result: Tree = _inline(raw, raw.get("$defs", {}))
    names = {"type": "string", "enum": recipe_names(), "description": "Named settings that the other keys override."}
    result["properties"] = {"recipe": names, **result["properties"]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **result,
        "description": "Settings of a training run.",
    }


def _inline(node: Any, definitions: Tree) -> Any:
    """Replace references by what they name, and drop what a partial config must not be held to."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    alternatives = [item for item in node.get("anyOf", []) if item != {"type": "null"}]
    if len(alternatives) == 1:
        node = {**alternatives[0], **{key: value for key, value in node.items() if key != "anyOf"}}
    dropped = {"$defs", "required", "default"}
    keywords = {
        key: value for key, value in node.items() if key not in dropped and not (key == "title" and "type" in node)
    }
    properties = {name: _inline(value, definitions) for name, value in keywords.pop("properties", {}).items()}
    result = {key: _inline(value, definitions) for key, value in keywords.items()}
    return {**result, "properties": properties} if properties else result


def _whole_numbers(node: Any) -> Any:
    """Make 8192.0 an integer again: Helm hands every number of a values file on as a float."""
    if isinstance(node, dict):
        return {key: _whole_numbers(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_whole_numbers(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() and abs(node) < 2**53 else node


def _overlay(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: _overlay(base.get(key), value) for key, value in over.items()}}
    return over


def _get(tree: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _without(tree: Tree, path: tuple[str, ...]) -> Tree:
    head, *rest = path
    if head not in tree:
        return tree
    if not rest:
        return {key: value for key, value in tree.items() if key != head}
    return {**tree, head: _without(tree[head], tuple(rest))}
