"""Messages about mistakes in settings, of training and of preparation."""

import argparse
from pathlib import Path

import pytest

from trainyard import config
from trainyard.config import layers
from trainyard.core.exits import UserError
from trainyard.prepare.settings import parse

SIGNED = "https://example.org/a.zip?signature=hidden"


def test_every_mistake_has_a_line() -> None:
    with pytest.raises(UserError) as caught:
        config.build({"recipe": "demo"}, {"optimizer": {"lrr": 1}, "loss": {"bce_threshold": 0.5}, "seed": -1})
    assert [line.partition(" = ")[0] for line in str(caught.value).split("\n")] == [
        "seed", "optimizer.lrr", "loss.bce_threshold"
    ]  # fmt: skip


def test_what_does_not_fit_together_is_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        config.build({"recipe": "demo"}, {"epochs": None, "precision": "fp16", "device": "cpu"})
    assert len(str(caught.value).split("\n")) == 2


def test_a_wrong_value_hides_no_mistake_across_keys() -> None:
    with pytest.raises(UserError) as caught:
        config.build(
            {"recipe": "demo"},
            {
                "precision": "fp8",
                "epochs": None,
                "comm": {"backend": "nccl"},
                "device": "cpu",
                "model": {"compile_mode": "max-autotune", "nmae": "x"},
            },
        )
    lines = str(caught.value).split("\n")
    assert sorted(line.partition(":")[0] for line in lines) == [
        "comm.backend = 'nccl' with device = 'cpu'",
        "model.compile_mode = 'max-autotune' with model.compile = False",
        "model.nmae = 'x'",
        "precision = 'fp8'",
        "set exactly one of epochs (now None) and max_steps (now None)",
    ]


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"epochs": "many"}, ["epochs"]),  # not that none is set
        ({"epochs": None, "max_step": 9}, ["max_step"]),
        ({"batch": {"global": 0}}, ["batch.global"]),
        ({"precision": "fp8", "comm": {"compression": "fp8"}}, ["comm.compression", "precision"]),
    ],
)
def test_a_rule_says_nothing_of_a_key_that_was_wrong(settings: dict[str, object], keys: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        config.build({"recipe": "demo"}, settings)
    assert sorted(line.partition(" = ")[0] for line in str(caught.value).split("\n")) == keys


def test_a_preparation_is_told_the_same_way() -> None:
    with pytest.raises(UserError) as caught:
        parse({"source": {"kind": "path", "path": "/a.zip"}, "out": "/data/x", "shard_md": 4, "csv": {"fiel": "x"}})
    said = str(caught.value)
    assert "csv.fiel = 'x': unknown key; did you mean csv.file?" in said
    assert "shard_md = 4: unknown key; did you mean shard_mb?" in said


@pytest.mark.parametrize(
    "source",
    [SIGNED, {"kind": "http", "url": [SIGNED]}, {"kind": "http", "ulr": SIGNED}, {"kind": "path", "url": SIGNED}],
)
def test_addresses_are_not_shown(source: object) -> None:
    with pytest.raises(UserError, match="source") as caught:
        parse({"source": source, "out": "/data/x"})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("skip=[a.jpg, b.jpg]", {"skip": ["a.jpg", "b.jpg"]}),
        ('class_names={"n01": "tench"}', {"class_names": {"n01": "tench"}}),
        ("class_names.T-shirt/top=shirt", {"class_names": {"T-shirt/top": "shirt"}}),
        ("run.name=2026-01-31", {"run": {"name": "2026-01-31"}}),
        ("csv.suffix=", {"csv": {"suffix": ""}}),
        ("source.url=https://example.org/a.zip?x=1&y=%20", {"source": {"url": "https://example.org/a.zip?x=1&y=%20"}}),
    ],
)
def test_flags_are_read_as_yaml(text: str, tree: object) -> None:
    assert layers.parse_override(text) == tree


def test_flags_lie_over_the_file_in_their_order(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    layers.add_options(parser)
    path = tmp_path / "settings.yaml"

    path.write_text("a: {b: 1, c: 2}\n")
    found = layers.read_options(parser.parse_args(["--config", str(path), "--set", "a.b=3", "--set", "a.b=4"]))
    assert found == [{"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 4}}]
