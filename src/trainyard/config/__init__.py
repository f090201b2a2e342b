"""The settings of a run: every key, its default and meaning, read from a recipe, a file and flags, and checked once.

sections/     the keys                        settings.py   all of them, and what must fit together
layers.py     files and flags                 load.py       recipe, file, flags -> Config
checking.py   messages about mistakes         run_plan.py   what the settings come to on N processes
estimate.py  what a run takes before it starts
"""

from trainyard.config.layers import parse_override, read_file
from trainyard.config.load import (
    add_options,
    as_tree,
    build,
    fingerprint,
    flat,
    load,
    read_recipe,
    recipe_names,
    schema,
    warn_of_former_names,
)
from trainyard.config.run_plan import RunPlan, make_plan, resolve_global_batch
from trainyard.config.settings import Config

__all__ = [
    "Config",
    "RunPlan",
    "add_options",
    "as_tree",
    "build",
    "fingerprint",
    "flat",
    "load",
    "make_plan",
    "parse_override",
    "read_file",
    "read_recipe",
    "recipe_names",
    "resolve_global_batch",
    "schema",
    "warn_of_former_names",
]
