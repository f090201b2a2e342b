"""Runs with frozen parts and rates by layer: frozen values stay to the bit, on any strategy, and resumes are exact."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import events
from fleet import Fleet
from published import weights

WAYS = [("ddp", 1), ("ddp", 2), ("fsdp", 2), pytest.param("horovod", 2, marks=pytest.mark.root)]
each_way = pytest.mark.parametrize(("kind", "world"), WAYS)
STEPS = 11
FROZEN = ("body.0.", "body.1.")
OVER: dict[str, Any] = {
    "max_steps": STEPS, "epochs": None, "model.freeze": ["body.0", "body.1"], "optimizer.layer_decay": 0.5,
    "optimizer.head_lr_scale": 4.0, "ema.decay": 0.5, "optimizer.lr": 0.2, "schedule.warmup_epochs": 0,
    "checkpoint.every_steps": 5, "optimizer.clip_norm": 1.0,
}  # fmt: skip


def trained(fleet: Fleet, run: Path, kind: str, world: int, **over: Any) -> Path:
    module = "trainers.hvd" if kind == "horovod" else "trainers.ddp"
    return fleet.train(run, world, module, **{**OVER, "strategy": kind if world > 1 else "auto", **over})


Run = Callable[[str, int], Path]  # with a strategy, on so many processes


@pytest.fixture(scope="module")
def run(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Whole runs, each of which is made once."""
    folder = tmp_path_factory.mktemp("finetuning")
    return functools.cache(lambda kind, world: trained(fleet, folder / f"{kind}-{world}", kind, world))


@pytest.fixture(scope="module")
def start(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The start of the same model, as a run whose learning rate is next to nothing keeps it."""
    folder = tmp_path_factory.mktemp("start")
    return weights(trained(fleet, folder / "run", "ddp", 1, **{"model.freeze": ["backbone"], "max_steps": 1}))


@each_way
def test_losses_agree_and_fall(run: Run, kind: str, world: int) -> None:
    alone, found = ([event["loss"] for event in events(one, "train")] for one in (run("ddp", 1), run(kind, world)))
    assert len(alone) == STEPS
    assert sum(alone[-3:]) < sum(alone[:3])
    assert found == pytest.approx(alone, rel=0, abs=1e-12)


@each_way
def test_frozen_values_and_statistics_stay_to_the_bit(
    run: Run, start: dict[str, torch.Tensor], kind: str, world: int
) -> None:
    found = weights(run(kind, world))
    for name, value in start.items():
        assert torch.equal(found[name], value) == name.startswith(FROZEN), name


@each_way
def test_a_resumed_run_ends_with_the_same_bits(run: Run, fleet: Fleet, tmp_path: Path, kind: str, world: int) -> None:
    """From the checkpoint of step 5: its schedule is that of the whole run, so only the later part is done again."""
    whole = run(kind, world)
    over = {"resume": str(whole / "checkpoints" / "step-00000005")}
    again = trained(fleet, tmp_path / "again", kind, world, **over)
    assert next(event["step"] for event in events(again, "train")) == 6
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(again).items())


def test_another_freeze_is_not_the_same_run(run: Run, fleet: Fleet, tmp_path: Path) -> None:
    over = {"resume": str(run("ddp", 1) / "checkpoints" / "step-00000005"), "model.freeze": "backbone"}
    codes, output = fleet.wait(fleet.start(tmp_path / "other", 1, **{**OVER, **over}))
    assert codes == [2]
    assert "model.freeze = ['backbone'], but" in output


def test_a_resumed_run_needs_no_pretrained_weights(fleet: Fleet, tmp_path: Path) -> None:
    """Neither the file nor what it says of images; and no run is trained from a damaged file."""
    folder = tmp_path / "weights"
    shutil.copytree(trained(fleet, tmp_path / "before", "ddp", 1, max_steps=1) / "published", folder)
    told = json.loads((folder / "config.json").read_text())
    told["pretrained_cfg"]["mean"] = [0.3, 0.5, 0.7]
    (folder / "config.json").write_text(json.dumps(told))
    over: dict[str, Any] = {"model.pretrained": str(folder)}
    whole = trained(fleet, tmp_path / "whole", "ddp", 1, **over)
    assert yaml.safe_load((whole / "config.yaml").read_text())["data"]["mean"] == [0.3, 0.5, 0.7]

    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    codes, output = fleet.wait(fleet.start(tmp_path / "damaged", 1, **{**OVER, **over}))
    assert codes == [2]
    assert "model.safetensors has SHA-256" in output
    assert not (tmp_path / "damaged" / "published").exists()

    shutil.rmtree(folder)
    again = trained(fleet, tmp_path / "again", "ddp", 1, **over, resume=str(whole / "checkpoints" / "step-00000005"))
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(again).items())
    codes, output = fleet.wait(fleet.start(tmp_path / "new", 1, **{**OVER, **over}))
    assert codes == [2], "a run from the start needs them"
    assert "cannot be read (No such file" in output
