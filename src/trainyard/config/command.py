"""Show and check settings.

trainyard config --schema                     the JSON schema of a config file
trainyard config --recipe demo --set seed=2   the settings that these options give, as YAML
"""

import argparse
import json

import yaml

from trainyard.config.load import add_options, as_tree, load, schema


def main() -> int:
    """Print the schema, or the settings that the options give."""
    parser = argparse.ArgumentParser(prog="trainyard config", description="Show and check settings.")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of a config file")
    add_options(parser)
    options = parser.parse_args()
    if options.schema:
        print(json.dumps(schema(), indent=2))
    else:
        print(yaml.safe_dump(as_tree(load(options)), sort_keys=False), end="")
    return 0
