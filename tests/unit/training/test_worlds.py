"""The same training on 1, 2, 3 and 4 processes with DDP, FSDP and Horovod: losses, order, weights, validation counts.

Two epochs and a half with augmentation, mixup and CutMix, ragged last batches that leave some processes without
samples, a model that refuses such a batch, global BatchNorm, and an average of the weights. All in fp64, where nothing
hides behind rounding.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CLASSES, TRAIN, VAL, events
from forked import Fleet
from little_models import Net
from published import weights
from safetensors.torch import load_file

pytestmark = pytest.mark.takes(30)

WORLDS = (1, 2, 3, 4)
HOROVOD = importlib.util.find_spec("horovod") is not None
KINDS = ("ddp", "fsdp", *(["horovod"] if HOROVOD else []))
STEPS, EPOCH = 20, -(-TRAIN // 8)
SAME = {
    "model.name": "little_models:strict",
    "max_steps": STEPS, "epochs": None, "validate.every_epochs": 2, "checkpoint.every_steps": 0,
    "augment.mixup": 0.2, "augment.cutmix": 1.0, "ema.decay": 0.9, "optimizer.lr": 0.5, "loss.label_smoothing": 0.1,
}  # fmt: skip

Runs = dict[tuple[str, int], Path]


@pytest.fixture(scope="module")
def runs(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Undisturbed runs with each strategy on each number of processes."""
    folder = tmp_path_factory.mktemp("worlds")
    found: Runs = {}
    for kind in KINDS:
        for world in WORLDS:
            module = "trainers.hvd" if kind == "horovod" else "trainers.ddp"
            found[kind, world] = fleet.train(folder / f"{kind}-{world}", world, module, strategy=kind, **SAME)
    return found


def test_losses_agree_to_rounding(runs: Runs) -> None:
    losses = {key: [event["loss"] for event in events(run, "train")] for key, run in runs.items()}
    reference = losses["ddp", 1]
    assert len(reference) == STEPS
    for key, found in losses.items():
        difference = max(abs(a - b) for a, b in zip(reference, found, strict=True))
        assert difference <= 1e-12, f"{key}: {difference}"
    assert sum(reference[-EPOCH:]) < 0.9 * sum(reference[:EPOCH])


def test_order_is_the_same_to_the_letter(runs: Runs) -> None:
    orders = {key: global_order(run, key[1]) for key, run in runs.items()}
    reference = orders["ddp", 1]
    assert all(order == reference for order in orders.values())
    for start in (0, EPOCH):
        ids = [i for step in reference[start : start + EPOCH] for i in step]
        assert sorted(ids) == list(range(TRAIN))  # the ragged tail is kept, nothing is padded
    assert reference[:EPOCH] != reference[EPOCH : 2 * EPOCH]


def test_validation_counts_every_sample_once(runs: Runs) -> None:
    found = {key: [(e["samples"], e["correct"]) for e in events(run, "validate")] for key, run in runs.items()}
    assert all(len(run) == 2 and samples == VAL for run in found.values() for samples, _ in run)
    assert all(run == found["ddp", 1] for run in found.values())
    last = events(runs["ddp", 3], "validate")[-1]
    assert last["top1"] == pytest.approx(100 * last["correct"] / VAL)
    assert last["top1"] > 40
    assert last["top5"] == 100.0  # four classes


def test_published_weights_load_into_the_plain_model(runs: Runs) -> None:
    states = {}
    for key, run in runs.items():
        states[key] = weights(run)
        Net(CLASSES).double().load_state_dict(states[key])
        safe = load_file(run / "published" / "model.safetensors")
        assert all(torch.equal(safe[name], states[key][name]) for name in states[key])
    for state in states.values():
        for name, tensor in states["ddp", 1].items():
            torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_summary_and_report(runs: Runs, kind: str) -> None:
    summary = json.loads((runs[kind, 4] / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["epochs"]) == ("finished", STEPS, -(-STEPS // EPOCH))
    assert (summary["world_size"], summary["strategy"]) == (4, kind)
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1, 2, 3]
    assert len({rank["pid"] for rank in summary["ranks"]}) == 4
    assert summary["images_per_second"] > 0
    train = events(runs[kind, 4], "train")
    spent = sum(sum(event["seconds"].values()) for event in train)
    assert sum(summary["seconds"].values()) >= spent
    assert train[-1]["samples"] == 2 * TRAIN + 4 * 8
    assert train[-1]["lr"] > 0
    page = (runs[kind, 4] / "report.html").read_text()
    assert "src=" not in page
    assert "href=" not in page
    assert f"{summary['top1']:.2f} %" in page


def test_finished_run_is_not_run_again(runs: Runs, fleet: Fleet) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs["ddp", 2].rglob("*") if path.is_file()}
    codes, output = fleet.wait(fleet.start(runs["ddp", 2], 2, strategy="ddp", **SAME))
    assert codes == [0, 0]
    assert output.count(f"is finished: {STEPS} steps") == 1
    assert before == {path: path.stat().st_mtime_ns for path in runs["ddp", 2].rglob("*") if path.is_file()}


def test_fewer_samples_than_processes_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    codes, output = fleet.wait(fleet.start(tmp_path / "run", 4, **{"batch.global": 3}))
    assert codes == [2] * 4
    assert "batch.global = 3: smaller than the 4 processes of this run" in output
    assert not (tmp_path / "run").exists()


def test_accumulation_and_exact_sums_do_not_change_the_result(fleet: Fleet, tmp_path: Path) -> None:
    short = {"model.name": "little_models:groups", "max_steps": 8, "epochs": None}
    whole = fleet.train(tmp_path / "whole", 1, **short)
    for kind in ("ddp", "fsdp"):
        parts = fleet.train(tmp_path / kind, 2, strategy=kind, **short, **{"batch.micro": 3, "comm.gradients": "fp64"})
        pairs = zip(events(whole, "train"), events(parts, "train"), strict=True)
        assert max(abs(a["loss"] - b["loss"]) for a, b in pairs) <= 1e-12


def test_weights_that_stay_between_forwards_are_never_stale(fleet: Fleet, tmp_path: Path, runs: Runs) -> None:
    """Validation puts averaged weights into the model and takes them out again, between steps that fetch weights."""
    kept = {"fsdp.reshard_after_forward": False, "validate.every_epochs": 1}
    run = fleet.train(tmp_path / "kept", 2, strategy="fsdp", **{**SAME, **kept})
    pairs = zip(events(run, "train"), events(runs["ddp", 1], "train"), strict=True)
    assert max(abs(a["loss"] - b["loss"]) for a, b in pairs) <= 1e-12
    found = {event["step"]: event["correct"] for event in events(run, "validate")}
    assert all(found[event["step"]] == event["correct"] for event in events(runs["ddp", 1], "validate"))


def global_order(run: Path, world: int) -> list[list[int]]:
    """Sample ids of each step, over all ranks in their order."""
    steps: dict[int, list[int]] = {}
    for rank in range(world):
        lines = (run / "samples" / f"rank-{rank}.jsonl").read_text().splitlines()
        for record in map(json.loads, lines):
            value: Any = record["sample_ids"]
            steps.setdefault(record["step"], []).extend(value)
    return [steps[step] for step in sorted(steps)]
