"""The settings of a run: every key, its default and meaning, read from a recipe, a file and flags, and checked."""

from trainers.config.load import (
    add_options,
    as_tree,
    build,
    fingerprint,
    load,
    parse_override,
    read_file,
    read_recipe,
    recipe_names,
    resolve_global_batch,
    schema,
)
from trainers.config.settings import Config

__all__ = [
    "Config",
    "add_options",
    "as_tree",
    "build",
    "fingerprint",
    "load",
    "parse_override",
    "read_file",
    "read_recipe",
    "recipe_names",
    "resolve_global_batch",
    "schema",
]
