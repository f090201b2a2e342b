"""The same training on 1, 2, 3 and 4 processes: losses, order, weights, validation counts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CLASSES, TRAIN, VAL, Trainer, events
from little_models import Net
from safetensors.torch import load_file

WORLDS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def worlds(session_trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Undisturbed runs on each number of processes."""
    folder = tmp_path_factory.mktemp("worlds")
    return {world: session_trainer.train(folder / f"on-{world}", world) for world in WORLDS}


def test_losses_agree_to_rounding(worlds: dict[int, Path]) -> None:
    losses = {world: [event["loss"] for event in events(run, "train")] for world, run in worlds.items()}
    assert len(losses[1]) == 2 * -(-TRAIN // 8)
    for world in WORLDS[1:]:
        difference = max(abs(a - b) for a, b in zip(losses[1], losses[world], strict=True))
        assert difference <= 1e-12, f"{world} processes: {difference}"
    assert losses[1][-1] < losses[1][0]


def test_order_is_the_same_to_the_letter(worlds: dict[int, Path]) -> None:
    orders = {world: global_order(run, world) for world, run in worlds.items()}
    assert all(order == orders[1] for order in orders.values())
    epoch = -(-TRAIN // 8)
    for start in (0, epoch):
        ids = [i for step in orders[1][start : start + epoch] for i in step]
        assert sorted(ids) == list(range(TRAIN))  # the ragged tail is kept, nothing is padded
    assert orders[1][:epoch] != orders[1][epoch:]


def test_validation_counts_every_sample_once(worlds: dict[int, Path]) -> None:
    found = {world: [(e["samples"], e["correct"]) for e in events(run, "validate")] for world, run in worlds.items()}
    assert all(samples == VAL for run in found.values() for samples, _ in run)
    assert all(run == found[1] for run in found.values())
    last = events(worlds[3], "validate")[-1]
    assert last["top1"] == pytest.approx(100 * last["correct"] / VAL)
    assert last["top1"] > 40
    assert last["top5"] == 100.0  # four classes


def test_published_weights_load_into_the_plain_model(worlds: dict[int, Path]) -> None:
    states = {}
    for world, run in worlds.items():
        states[world] = torch.load(run / "published" / "model.pth", weights_only=True)
        Net(CLASSES).double().load_state_dict(states[world])
        safe = load_file(run / "published" / "model.safetensors")
        assert all(torch.equal(safe[name], states[world][name]) for name in states[world])
    for world in WORLDS[1:]:
        for name, tensor in states[1].items():
            torch.testing.assert_close(states[world][name], tensor, rtol=0, atol=1e-11)


def test_summary_and_report(worlds: dict[int, Path]) -> None:
    summary = json.loads((worlds[4] / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["epochs"]) == ("finished", 16, 2)
    assert (summary["world_size"], summary["strategy"]) == (4, "ddp")
    assert [rank["rank"] for rank in summary["ranks"]] == [0, 1, 2, 3]
    assert len({rank["pid"] for rank in summary["ranks"]}) == 4
    assert summary["images_per_second"] > 0
    train = events(worlds[4], "train")
    spent = sum(sum(event["seconds"].values()) for event in train)
    assert sum(summary["seconds"].values()) >= spent
    assert train[-1]["samples"] == 2 * TRAIN
    assert train[-1]["lr"] > 0
    page = (worlds[4] / "report.html").read_text()
    assert page.count("<svg") == 5
    assert "src=" not in page
    assert "href=" not in page
    assert f"{summary['top1']:.2f} %" in page


def test_finished_run_is_not_run_again(worlds: dict[int, Path], trainer: Trainer) -> None:
    before = {path: path.stat().st_mtime_ns for path in worlds[2].rglob("*") if path.is_file()}
    code, output = trainer.run(worlds[2], 2)
    assert code == 0
    assert output.count("is finished: 16 steps") == 1
    assert before == {path: path.stat().st_mtime_ns for path in worlds[2].rglob("*") if path.is_file()}


def test_accumulation_and_exact_sums_do_not_change_the_result(trainer: Trainer, tmp_path: Path) -> None:
    short = {"model.name": "little_models:groups", "max_steps": 8, "epochs": None}
    whole = trainer.train(tmp_path / "whole", **short)
    parts = trainer.train(tmp_path / "parts", 2, **short, **{"batch.micro": 3, "comm.gradients": "fp64"})
    pairs = zip(events(whole, "train"), events(parts, "train"), strict=True)
    assert max(abs(a["loss"] - b["loss"]) for a, b in pairs) <= 1e-12


def global_order(run: Path, world: int) -> list[list[int]]:
    """Sample ids of each step, over all ranks in their order."""
    steps: dict[int, list[int]] = {}
    for rank in range(world):
        lines = (run / "samples" / f"rank-{rank}.jsonl").read_text().splitlines()
        for record in map(json.loads, lines):
            value: Any = record["sample_ids"]
            steps.setdefault(record["step"], []).extend(value)
    return [steps[step] for step in sorted(steps)]
