"""The same training on 1, 2, 3 and 4 processes with DDP, FSDP and Horovod: losses, order, weights, validation counts.

Two epochs and a half with augmentation, mixup and CutMix, ragged last batches that leave some processes without
samples, a model that refuses such a batch, global BatchNorm, and an average of the weights. All in fp64, where nothing
hides behind rounding.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CLASSES, TRAIN, VAL, events
from fleet import Fleet
from little_models import Net
from published import weights
from safetensors.torch import load_file

pytestmark = pytest.mark.takes(30)

WORLDS = {"ddp": (1, 2, 3, 4), "fsdp": (2, 3, 4), "horovod": (1, 2, 3, 4)}  # FSDP's one process has nothing of FSDP
each_kind = pytest.mark.parametrize("kind", ["ddp", "fsdp", pytest.param("horovod", marks=pytest.mark.root)])
STEPS, EPOCH = 20, -(-TRAIN // 8)
SAME = {
    "model.name": "little_models:strict",
    "max_steps": STEPS, "epochs": None, "validate.every_epochs": 2, "checkpoint.every_steps": 0,
    "augment.mixup": 0.2, "augment.cutmix": 1.0, "ema.decay": 0.9, "optimizer.lr": 0.5, "loss.label_smoothing": 0.1,
}  # fmt: skip

# FSDP's weights stay between a forward and its backward on two processes: validation puts averaged ones into the model
# and takes them out again, between steps that fetch weights
OVER = {("fsdp", 2): {"fsdp.reshard_after_forward": False}}

Run = Callable[[str, int], Path]  # with a strategy, on so many processes


def module(kind: str) -> str:
    return "trainers.hvd" if kind == "horovod" else "trainers.ddp"


@pytest.fixture(scope="module")
def run(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Undisturbed runs, each of which is made once."""
    folder = tmp_path_factory.mktemp("worlds")

    def train(kind: str, world: int) -> Path:
        return fleet.train(
            folder / f"{kind}-{world}", world, module(kind), strategy=kind, **SAME, **OVER.get((kind, world), {})
        )

    return functools.cache(train)


@each_kind
def test_losses_agree_to_rounding(run: Run, kind: str) -> None:
    reference = losses(run("ddp", 1))
    assert len(reference) == STEPS
    for world in WORLDS[kind]:
        difference = max(abs(a - b) for a, b in zip(reference, losses(run(kind, world)), strict=True))
        assert difference <= 1e-12, f"{world} processes: {difference}"
    assert sum(reference[-EPOCH:]) < 0.9 * sum(reference[:EPOCH])


@each_kind
def test_order_is_the_same_to_the_letter(run: Run, kind: str) -> None:
    reference = global_order(run("ddp", 1), 1)
    assert all(global_order(run(kind, world), world) == reference for world in WORLDS[kind])
    for start in (0, EPOCH):
        ids = [i for step in reference[start : start + EPOCH] for i in step]
        assert sorted(ids) == list(range(TRAIN))  # the ragged tail is kept, nothing is padded
    assert reference[:EPOCH] != reference[EPOCH : 2 * EPOCH]


@each_kind
def test_validation_counts_every_sample_once(run: Run, kind: str) -> None:
    reference = counts(run("ddp", 1))
    assert [samples for samples, _ in reference] == [VAL, VAL]
    assert all(counts(run(kind, world)) == reference for world in WORLDS[kind])
    last = events(run(kind, 3), "validate")[-1]
    assert last["top1"] == pytest.approx(100 * last["correct"] / VAL)
    assert last["top1"] > 40
    assert last["top5"] == 100.0  # four classes


@each_kind
def test_published_weights_load_into_the_plain_model(run: Run, kind: str) -> None:
    reference = weights(run("ddp", 1))
    for world in WORLDS[kind]:
        state = weights(run(kind, world))
        Net(CLASSES).double().load_state_dict(state)
        safe = load_file(run(kind, world) / "published" / "model.safetensors")
        assert all(torch.equal(safe[name], state[name]) for name in state)
        for name, tensor in reference.items():
            torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-11)


@each_kind
def test_summary_and_report(run: Run, kind: str) -> None:
    summary = json.loads((run(kind, 4) / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["epochs"]) == ("finished", STEPS, -(-STEPS // EPOCH))
    assert (summary["world_size"], summary["strategy"]) == (4, kind)
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1, 2, 3]
    assert len({rank["pid"] for rank in summary["ranks"]}) == 4
    assert summary["images_per_second"] > 0
    train = events(run(kind, 4), "train")
    spent = sum(sum(event["seconds"].values()) for event in train)
    assert sum(summary["seconds"].values()) >= spent
    assert train[-1]["samples"] == 2 * TRAIN + 4 * 8
    assert train[-1]["lr"] > 0
    page = (run(kind, 4) / "report.html").read_text()
    assert "src=" not in page
    assert "href=" not in page
    assert f"{summary['top1']:.2f} %" in page


def test_finished_run_is_not_run_again(run: Run, fleet: Fleet) -> None:
    folder = run("ddp", 2)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    codes, output = fleet.wait(fleet.start(folder, 2, strategy="ddp", **SAME))
    assert codes == [0, 0]
    assert output.count(f"is finished: {STEPS} steps") == 1
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_fewer_samples_than_processes_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    codes, output = fleet.wait(fleet.start(tmp_path / "run", 4, **{"batch.global": 3}))
    assert codes == [2] * 4
    assert "batch.global = 3: smaller than the 4 processes of this run" in output
    assert not (tmp_path / "run").exists()


def test_accumulation_and_exact_sums_do_not_change_the_result(fleet: Fleet, tmp_path: Path) -> None:
    short = {"model.name": "little_models:groups", "max_steps": 8, "epochs": None, "validate.every_epochs": 0}
    whole = fleet.train(tmp_path / "whole", 1, **short)
    for kind in ("ddp", "fsdp"):
        parts = fleet.train(tmp_path / kind, 2, strategy=kind, **short, **{"batch.micro": 3, "comm.gradients": "fp64"})
        pairs = zip(events(whole, "train"), events(parts, "train"), strict=True)
        assert max(abs(a["loss"] - b["loss"]) for a, b in pairs) <= 1e-12


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in events(run, "train")]


def counts(run: Path) -> list[tuple[int, int]]:
    """Samples, and how many were right, of each validation."""
    return [(event["samples"], event["correct"]) for event in events(run, "validate")]


def global_order(run: Path, world: int) -> list[list[int]]:
    """Sample ids of each step, over all ranks in their order."""
    steps: dict[int, list[int]] = {}
    for rank in range(world):
        lines = (run / "samples" / f"rank-{rank}.jsonl").read_text().splitlines()
        for record in map(json.loads, lines):
            value: Any = record["sample_ids"]
            steps.setdefault(record["step"], []).extend(value)
    return [steps[step] for step in sorted(steps)]
