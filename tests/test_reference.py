"""The generated reference leaves nothing out; lint checks that it is current."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hack.reference import exit_codes, settings
from trainyard import cli, config
from trainyard.cluster.remedies import EXIT_CODES
from trainyard.core.exits import CAUSES, Exit

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")}


def flat(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of a tree of settings by their whole key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        here = f"{path}.{key}" if path else key
        found |= flat(value, here) if isinstance(value, dict) else {here: value}
    return found


def test_every_trainer_setting_has_the_default_that_a_run_gets() -> None:
    said = dict(re.findall(r"^\| `([\w.]+)` \| .*? \| (?:`(.*?)`)? \| .+ \|$", PAGES["trainer-settings"], re.M))
    minimal = {"max_steps": 1, "batch": {"global": 8}, "data": {"dir": "x"}}
    given = flat(minimal)
    defaults = flat(config.as_tree(config.build(minimal)))
    assert len(defaults) > 100
    assert defaults.keys() <= said.keys()
    for key, value in defaults.items():
        if key not in given and value not in (None, [], {}):
            assert json.loads(said[key]) == value, key
    assert said["epochs"] == ""


def test_every_program_and_target_is_on_the_page() -> None:
    for name in {*cli.known()} - {"launch"}:  # torchrun's options
        assert f"### trainyard {name}\n\n```text\nusage: trainyard {name} " in PAGES["commands"], name
    for name in ("ddp", "hvd"):
        assert f"### python -m trainers.{name}\n\n```text\nusage: python -m trainers.{name} " in PAGES["commands"], name
    (parts,) = re.findall(r"### trainyard prepare\n.*?\{([\w,]+)\}", PAGES["commands"], re.S)
    for part in parts.split(","):
        assert f"### trainyard prepare {part}\n" in PAGES["commands"]
    for target in re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M):
        assert f"| `make {target}` |" in PAGES["commands"]


def test_every_exit_code_and_cause_is_on_the_page() -> None:
    for code in {*Exit, *EXIT_CODES}:
        retried = "yes" if code >= 128 and code != Exit.INTERRUPTED else "no"
        assert re.search(rf"^\| {code:d} \| .+ \| {retried} \|$", PAGES["exit-codes"], re.M), code
    assert [row[0] for row in exit_codes.causes()] == [
        f"`{name}`" for name in dict.fromkeys(one.name for one in CAUSES)
    ]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 64}, "whole number from 1 to 64"),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "number above 0 below 1"),
        ({"type": "array", "items": {"type": "string"}}, "list of text"),
        ({"enum": ["a", "b"], "type": "string"}, "`a`, `b`"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "whole number or text"),
    ],
)
def test_types_are_said_in_words(schema: dict[str, Any], words: str) -> None:
    assert settings.kind(schema) == words
