"""Mixed precision through the whole engine, on a processor's autocast: losses near fp32's, and the scaler's state."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import events
from faulted import ENDLESS, assert_same, start
from fleet import Fleet

from trainyard.training.trainer import load_scale

pytestmark = [pytest.mark.takes(25), pytest.mark.ranks(2)]

# Dropout would draw other numbers on other processes, and BatchNorm see other samples
SHORT: dict[str, Any] = {
    "model.name": "little_models:groups", "model.batch_norm": "local", "epochs": None, "max_steps": 16,
    "optimizer.lr": 1.0, "ema.decay": 0.9, "augment.mixup": 0.2, "optimizer.clip_norm": 1.0, "batch.micro": 2,
    "schedule.warmup_epochs": 0,
}  # fmt: skip
AUTO = {"device": "auto", "env": {"CUDA_VISIBLE_DEVICES": ""}}  # fp16 is refused where the settings name the CPU


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in events(run, "train")]


@pytest.fixture(scope="module")
def full(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet.train(tmp_path_factory.mktemp("fp32") / "run", 1, **SHORT, precision="fp32")


@pytest.mark.parametrize(("kind", "world"), [("single", 1), ("ddp", 2), ("fsdp", 2)])
def test_bf16_stays_near_fp32(fleet: Fleet, tmp_path: Path, full: Path, kind: str, world: int) -> None:
    """bf16 has 8 bits of mantissa, so a loss is right to about 1 in 256; here it is bounded by twice that."""
    run = fleet.train(tmp_path / "run", world, **SHORT, precision="bf16", strategy=kind)
    expected, found = losses(full), losses(run)
    assert found != expected, "nothing was computed in bf16"
    assert found == pytest.approx(expected, rel=2 / 256)
    assert expected[-1] < 0.95 * expected[0], "nothing was learnt that could differ"
    ends = [events(done, "validate")[-1] for done in (full, run)]
    assert ends[1]["loss"] == pytest.approx(ends[0]["loss"], rel=2 / 256)


def test_fp16_scales_the_loss_and_resumes_with_the_scale(fleet: Fleet, tmp_path: Path, full: Path) -> None:
    over = {**SHORT, **AUTO, "precision": "fp16", "checkpoint.every_steps": 4, "optimizer.lr": 0.5}
    calm, run = tmp_path / "calm", tmp_path / "run"
    assert start(fleet, calm, "", **over)[0] == [0]
    codes, output = start(fleet, run, "renamed kill 0 3", **over, **ENDLESS)
    assert codes == [-9], output
    manifest = json.loads((run / "checkpoints" / "step-00000012" / "manifest.json").read_text())
    scaler = manifest["scaler"]
    assert scaler["scale"] == 65536.0
    assert scaler["_growth_tracker"] == 12, "steps since the scale was last changed"
    codes, output = start(fleet, run, "", **over, **ENDLESS)
    assert codes == [0], output
    assert_same(run, calm)
    manifests = [path / "checkpoints" / "step-00000016" / "manifest.json" for path in (run, calm)]
    resumed, undisturbed = (json.loads(path.read_text())["scaler"] for path in manifests)
    assert resumed == undisturbed
    assert resumed["_growth_tracker"] == 16


def test_a_run_changes_its_precision_when_it_is_resumed(fleet: Fleet, tmp_path: Path) -> None:
    """From fp32, whose checkpoint has no scale, to fp16, and on in bf16."""
    over = {**SHORT, **AUTO, "checkpoint.every_steps": 4, "optimizer.lr": 0.5}
    run = tmp_path / "run"
    for precision, fault in (("fp32", "renamed kill 0 1"), ("fp16", "renamed kill 0 2"), ("bf16", "")):
        codes, output = start(fleet, run, fault, **over, precision=precision, **ENDLESS)
        assert codes == [-9 if fault else 0], output
    scalers = [
        json.loads((run / "checkpoints" / f"step-{step:08d}" / "manifest.json").read_text())["scaler"]
        for step in (8, 12, 16)
    ]
    assert [scaler["_growth_tracker"] for scaler in scalers[:2]] == [4, 8], "steps in fp16"
    assert scalers[2] == {}
    assert len(losses(run)) == 16


def test_a_run_may_change_to_fp16_and_keeps_its_scale_then() -> None:
    other, fp16 = torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu", init_scale=8.0)
    load_scale(fp16, other.state_dict())
    assert fp16.get_scale() == 8.0
    again = torch.amp.GradScaler("cpu")
    load_scale(again, fp16.state_dict())
    assert again.get_scale() == 8.0
