"""Workflows and composite actions of GitHub: each action by its commit, each image by its digest."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from hack.pins.problems import DIGEST, Problem, exceptions

COMMIT = re.compile(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}")
VERSION = re.compile(r"#\s*v?\d+(\.\d+)+\b")


def check(text: str) -> Iterator[Problem]:
    """Yield what is used without a digest, and digests without a comment that names the version.

    Raises yaml.YAMLError.
    """
    reasons = exceptions(text)
    lines = text.splitlines()
    for key, node in _uses(yaml.compose(text, yaml.SafeLoader)):
        line = node.start_mark.line + 1
        if problem := _action(node.value, lines[line - 1]) if key == "uses" else _image(node.value):
            yield Problem(line, problem, reasons.get(line, ""))


def _action(name: str, line: str) -> str:
    if name.startswith("./"):
        return ""
    if name.startswith("docker://"):
        return _image(name.removeprefix("docker://"))
    if not COMMIT.fullmatch(name):
        return f"the action {name} is not named by a commit of 40 digits"
    return "" if VERSION.search(line) else f"no comment behind {name} names its version"


def _image(name: str) -> str:
    return "" if DIGEST.search(name) else f"the image {name} is not named by its digest"


def _uses(node: Any) -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Yield the values of `uses`, `image` and `container` at any depth, with their places."""
    children = node.value if isinstance(node, yaml.CollectionNode) else []
    for child in children:
        if isinstance(node, yaml.SequenceNode):
            yield from _uses(child)
            continue
        key, value = child
        if isinstance(value, yaml.CollectionNode):
            yield from _uses(value)
        elif key.value in ("uses", "image", "container"):
            yield key.value, value
