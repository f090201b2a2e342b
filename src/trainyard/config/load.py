"""Read the settings of a run: recipe, file and flags, in this order, each overriding the one before.

A mistake is a UserError that names the key, its value and the remedy, before torch is loaded.
"""

import argparse
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from trainyard.config import json_schema, layers
from trainyard.config.checking import validate
from trainyard.config.layers import Tree, YamlLoader, overlay
from trainyard.config.settings import Config
from trainyard.core.exits import UserError
from trainyard.core.files import json_checksum, value_at
from trainyard.core.named import current

# Only one of each pair may be set: setting one in a later layer drops the other from the layers before.
ALTERNATIVES = ((("batch", "global"), ("batch", "per_process")), (("epochs",), ("max_steps",)))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every trainer understands."""
    layers.add_options(parser, "settings as YAML or JSON; `recipe: NAME` in it is their base")
    parser.add_argument("--recipe", metavar="NAME", help=f"named settings: {', '.join(recipe_names())}")


def load(options: argparse.Namespace) -> Config:
    """Build the settings from parsed command-line options; raises UserError."""
    if not options.config and not options.recipe:
        raise UserError(f"no settings given: pass --config FILE or --recipe NAME ({', '.join(recipe_names())})")
    given = layers.read_options(options)
    at = 1 if options.config else 0  # a recipe named by a flag wins over the file's
    recipe = [{"recipe": options.recipe}] if options.recipe else []
    return build(*given[:at], *recipe, *given[at:])


def warn_of_former_names(options: argparse.Namespace) -> list[str]:
    """Return a warning for each setting that names a module of this package as `trainers.NAME`; raises UserError."""
    given = {key: value for tree in layers.read_options(options) for key, value in flat(tree).items()}
    return [
        f"warning: {key} = {value!r}: only this version still knows that name; write {current(value)}"
        for key, value in given.items()
        if isinstance(value, str) and ":" in value and current(value) != value
    ]


def build(*trees: Tree) -> Config:
    """Merge layers of raw settings over the recipe they name, and check the result; raises UserError."""
    recipe = next((tree["recipe"] for tree in reversed(trees) if "recipe" in tree), None)
    merged: Tree = {} if recipe is None else read_recipe(recipe)
    for tree in trees:
        merged = merge(merged, {key: value for key, value in tree.items() if key != "recipe"})
    return validate(Config, merged)


def merge(base: Tree, over: Tree) -> Tree:
    """Lay one tree of settings over another; the upper one's choice among alternatives wins."""
    result = base
    for pair in ALTERNATIVES:
        for mine, other in (pair, pair[::-1]):
            if value_at(over, *mine) is not None and value_at(over, *other) is None:
                result = _without(result, other)
    merged: Tree = overlay(result, over)
    return merged


def fingerprint(config: Config) -> str:
    """Return a short hash of all settings."""
    return json_checksum(as_tree(config))[:16]


def as_tree(config: Config) -> Tree:
    """Return the settings as plain data, with the names that a file uses; unset alternatives are left out."""
    return config.model_dump(mode="json", by_alias=True, exclude_none=True)


def flat(settings: Mapping[str, Any], above: str = "") -> Tree:
    """Nested settings by their whole keys, such as `model.name`."""
    found: Tree = {}
    for key, value in settings.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(
        entry.name[:-5] for entry in resources.files("trainyard.recipes").iterdir() if entry.name[-5:] == ".yaml"
    )


def read_recipe(name: Any) -> Tree:
    """Return the raw settings of a recipe; raises UserError where there is none of this name."""
    if name not in recipe_names():
        raise UserError(f"recipe = {name!r}: no such recipe; there are {', '.join(recipe_names())}")
    tree: Tree = yaml.load((resources.files("trainyard.recipes") / f"{name}.yaml").read_text(), YamlLoader)
    return tree


def schema() -> Tree:
    """JSON schema of a config file: every key optional, closed at every depth, without references."""
    result: Tree = json_schema.partial(json_schema.without_references(Config))
    names = {"type": "string", "enum": recipe_names(), "description": "Named settings that the other keys override."}
    result["properties"] = {"recipe": names, **result["properties"]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **result,
        "description": "Settings of a training run.",
    }


def _without(tree: Tree, path: tuple[str, ...]) -> Tree:
    head, *rest = path
    if head not in tree:
        return tree
    if not rest:
        return {key: value for key, value in tree.items() if key != head}
    return {**tree, head: _without(tree[head], tuple(rest))}
