"""Settings: recipes, files and flags, and messages about mistakes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from conftest import ROOT, environment

from trainyard import config
from trainyard.core.exits import UserError

DEMO: dict[str, Any] = {"recipe": "demo"}


def test_later_layers_override_earlier_ones() -> None:
    built = config.build({"recipe": "demo", "optimizer": {"lr": 0.5}}, {"optimizer": {"momentum": 0.5}})
    recipe = config.read_recipe("demo")
    assert (built.optimizer.lr, built.optimizer.momentum) == (0.5, 0.5)
    assert built.optimizer.nesterov == recipe["optimizer"]["nesterov"]


def test_off_needs_no_quotes_in_yaml() -> None:
    assert config.build(DEMO, config.parse_override("wandb.mode=off")).wandb.mode == "off"
    with pytest.raises(UserError, match=r"wandb\.mode = True"):
        config.build(DEMO, config.parse_override("wandb.mode=on"))
    assert config.build(DEMO, config.parse_override("mlflow.mode=off")).mlflow.mode == "off"


def test_of_alternatives_the_later_one_counts() -> None:
    built = config.build(DEMO, {"batch": {"per_process": 32}}, {"max_steps": 7})
    assert (built.batch.global_, built.batch.per_process) == (None, 32)
    assert (built.epochs, built.max_steps) == (None, 7)
    with pytest.raises(UserError, match=r"exactly one of batch\.global"):
        config.build(DEMO, {"batch": {"per_process": 32, "global": 64}})


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optimizer.lrr=1", "optimizer.lrr = 1: unknown key; did you mean optimizer.lr?"),
        ("model.nmae=x", "model.nmae = 'x': unknown key; did you mean model.name?"),
        ("zzz=1", "zzz = 1: unknown key; remove it, or use one of seed, run"),
        ("optimizer.lr=fast", "optimizer.lr = 'fast': input should be a valid number"),
        ("optimizer.lr=0", "optimizer.lr = 0: input should be greater than 0"),
        ("optimizer.lr=.nan", "optimizer.lr = nan: input should be a finite number"),
        ("batch.global=1.5", "batch.global = 1.5: input should be a valid integer"),
        ('batch.global="12x"', "batch.global = '12x': input should be a valid integer"),
        ('batch.global="1.5"', "batch.global = 1.5: input should be a valid integer"),
        ("mlflow.uri=mlflow.example.com", "mlflow.uri = 'mlflow.example.com': give the address of a tracking server"),
        ("mlflow.uri=https://ada:secret@mlflow.example.com", "must not hold a user name or password"),
        ("seed=true", "seed = True: input should be a valid integer"),
        ("precision=fp8", "precision = 'fp8': input should be 'fp64', 'fp32', 'tf32', 'bf16' or 'fp16'"),
        ("run=x", "run = 'x': input should be a valid dictionary"),
        ("data.dir=", "data.dir = '': no data; give the folder"),
        ("augment.scale=[1.0, 0.5]", "augment.scale = [1.0, 0.5]: the first number must not be larger"),
        ("recipe=nope", "recipe = 'nope': no such recipe; there are demo, finetune, finetune-vit, resnet50-18"),
    ],
)
def test_mistakes_name_key_value_and_remedy(override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        config.build(DEMO, config.parse_override(override))
    assert said in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("1e-4", 1e-4), ("5E+2", 500.0), ("1.0", 1.0), (".5", 0.5)])
def test_numbers_are_read_as_people_write_them(text: str, value: float) -> None:
    assert config.build(DEMO, config.parse_override(f"optimizer.lr={text}")).optimizer.lr == value


def test_numbers_may_be_text() -> None:
    """Helm's --set writes every fraction as text."""
    text = {"optimizer": {"lr": "1e-3"}, "batch": {"global": "64"}, "data": {"mean": ["0.5", ".25", "1"]}}
    built = config.build(DEMO, text, {"model": {"name": "123"}})
    assert (built.optimizer.lr, built.batch.global_, built.data.mean) == (1e-3, 64, [0.5, 0.25, 1.0])
    assert built.model.name == "123"


def test_whole_floats_are_integers() -> None:
    """Helm turns every number of a values file into a float."""
    assert config.build(DEMO, {"batch": {"global": 8192.0}}).batch.global_ == 8192


def test_batch_that_cannot_be_split() -> None:
    built = config.build(DEMO, {"batch": {"global": 3}})
    assert config.resolve_global_batch(built, 3) == 3
    with pytest.raises(UserError, match=r"batch.global = 3: smaller than the 4 processes"):
        config.resolve_global_batch(built, 4)
    assert config.resolve_global_batch(config.build(DEMO, {"batch": {"per_process": 32}}), 4) == 128


def test_settings_survive_their_own_file(tmp_path: Path) -> None:
    built = config.build(DEMO, {"augment": {"ratio": [0.9, 1.1]}})
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.as_tree(built)))
    assert config.build(config.read_file(path)) == built
    assert config.fingerprint(config.build(config.read_file(path))) == config.fingerprint(built)


def test_schema_is_closed_and_partial() -> None:
    schema = config.schema()
    assert "$ref" not in json.dumps(schema)
    assert "required" not in json.dumps(schema)
    validator = jsonschema.Draft7Validator(schema)
    assert validator.is_valid({})
    assert validator.is_valid({"recipe": "demo", "batch": {"global": 64}, "validate": {"every_epochs": 2}})
    for wrong in ({"optimizer": {"lrr": 1}}, {"batch": {"global_": 1}}, {"seed": "x"}, {"recipe": "nope"}):
        assert not validator.is_valid(wrong)
    check_node(schema)
    for name in config.recipe_names():
        validator.validate(config.read_recipe(name))


def check_node(node: dict[str, Any]) -> None:
    """Every section is closed; every key says what it means. A key may take one of several types, or none.

    A number has no other text beside it than a certain word: any other would be a number that was misspelt.
    """
    if "anyOf" in node:
        kinds = [choice["type"] for choice in node["anyOf"] if "const" not in choice]
        words = len(kinds) < len(node["anyOf"])
        assert all(kind in (("integer", "number") if words else ("string", "array")) for kind in kinds)
    elif node["type"] == "object":
        assert node["additionalProperties"] is False
        for child in node["properties"].values():
            assert len(child["description"]) >= 5
            check_node(child)


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("comm", "hang_seconds", "soon", "= 'soon': input should be 'auto' or a valid number"),
        ("comm", "hang_seconds", -1, "= -1: input should be 'auto' or greater than or equal to 0"),
        ("checkpoint", "every_seconds", 1.5, "= 1.5: input should be 'auto' or a valid integer"),
    ],
)
def test_a_key_that_takes_a_word_or_a_number_says_both(section: str, key: str, value: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        config.build({"recipe": "demo"}, {section: {key: value}})
    assert str(caught.value) == f"{section}.{key} {said}"
    built = config.build({"recipe": "demo"}, {section: {key: "60"}})  # as Helm's --set writes it
    assert getattr(getattr(built, section), key) == 60


@pytest.mark.parametrize("name", config.recipe_names())
def test_recipes_are_sound(name: str) -> None:
    built = config.build({"recipe": name}, {"data": {"dir": "/data"}})
    assert built.model.num_classes == 0, "as many as the data has"


def test_wrong_settings_end_with_2_before_torch_is_loaded() -> None:
    code = "import sys, runpy; sys.argv[1:] = ['--recipe', 'demo', '--set', 'optimizer.lrr=1']\n"
    code += "import os; os._exit = sys.exit\n"
    code += "try: runpy.run_module('trainers.ddp', run_name='__main__')\n"
    code += "finally: assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert result.stderr == "error: optimizer.lrr = 1: unknown key; did you mean optimizer.lr?\n"
