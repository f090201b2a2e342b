"""Settings as layers of plain data, for training and preparation: a file, then flags; later ones override earlier ones.

Text is YAML, in a file as in a flag: `--set optimizer.lr=1e-3`, `--set skip=[a.jpg, b.jpg]`.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import yaml

from trainyard.core.exits import UserError
from trainyard.core.storage import storage

Tree = dict[str, Any]


class YamlLoader(yaml.SafeLoader):
    """YAML's safe loader, but `1e-4` is a number, as in YAML 1.2, and 2026-01-31 is text: no setting is a date."""


YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def add_options(parser: argparse.ArgumentParser, config_help: str = "settings as YAML or JSON") -> None:
    """Add `--config` and `--set` to a command."""
    parser.add_argument("--config", metavar="FILE", help=config_help)
    parser.add_argument(
        "--set", metavar="KEY.PATH=VALUE", action="append", default=[], dest="overrides", help="override one setting"
    )


def read_options(options: argparse.Namespace) -> list[Tree]:
    """Return the layers of a command line: the file first, then each `--set`; raises UserError."""
    file = [read_file(Path(options.config))] if options.config else []
    return [*file, *(parse_override(text) for text in options.overrides)]


def read_file(path: Path) -> Tree:
    """Read a YAML or JSON file of settings; raises UserError."""
    try:
        tree = yaml.load(storage.read_text(path), YamlLoader)
    except OSError as error:
        raise UserError(f"--config {path}: cannot be read ({error.strerror}); check the path") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--config {path}: cannot be read ({' '.join(str(error).split())}); correct it") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"--config {path}: holds {type(tree).__name__}, not settings; write `key: value` lines")
    return {str(key): value for key, value in tree.items()}


def parse_override(text: str) -> Tree:
    """Turn `a.b=value` into {"a": {"b": value}}; the value is read as YAML. Raises UserError."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", key):
        raise UserError(f"--set {text}: write it as key=value, such as --set seed=2 or --set SECTION.KEY=VALUE")
    try:
        tree: Any = yaml.load(value, YamlLoader) if value else ""
    except yaml.YAMLError:
        tree = value
    return nest(key, tree)


def nest(key: str, value: Any) -> Tree:
    """Return settings that hold one value, at a key such as `model.name`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def overlay(base: Any, over: Any) -> Any:
    """Lay one tree over another: sections are merged key by key, any other value is replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: overlay(base.get(key), value) for key, value in over.items()}}
    return over


def whole_numbers(node: Any) -> Any:
    """Make 8192.0 an integer again: Helm writes every number of a values file as a float."""
    if isinstance(node, dict):
        return {key: whole_numbers(value) for key, value in node.items()}
    if isinstance(node, list):
        return [whole_numbers(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() and abs(node) < 2**53 else node
