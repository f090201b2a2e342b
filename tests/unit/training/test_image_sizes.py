"""Images that grow with the epochs: the same run on any number of processes and after any resume, to the bit."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import TRAIN, VAL, events
from fleet import Fleet
from published import assert_same_weights

pytestmark = [pytest.mark.takes(20), pytest.mark.ranks(2)]

EPOCH = -(-TRAIN // 8)  # steps, of which the last has 2 samples
SIZES = [10, 12, 16, 16]
GROWS: dict[str, Any] = {
    "data.size_start": 10, "data.image_size": 16, "data.size_ramp": [0.0, 0.5], "data.size_multiple": 4,
    "data.val_image_size": 18, "data.val_resize": 20, "epochs": 4, "validate.every_epochs": 2, "augment.mixup": 0.2,
    "augment.cutmix": 1.0, "ema.decay": 0.9, "optimizer.lr": 0.3, "model.name": "little_models:strict",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """On one process, with each checkpoint kept, and on three, of which some get no sample in the last batch."""
    folder = tmp_path_factory.mktemp("sizes")
    over = {**GROWS, "checkpoint.keep_last": 20}
    return {world: fleet.train(folder / f"{world}", world, **over) for world in (1, 3)}


def steps(run: Path) -> list[tuple[int, float, int]]:
    return [(event["step"], event["loss"], event["image_size"]) for event in events(run, "train")]


def test_each_epoch_has_its_size_and_each_sample_once(runs: dict[int, Path]) -> None:
    for world, run in runs.items():
        assert [size for _, _, size in steps(run)] == [size for size in SIZES for _ in range(EPOCH)]
        seen: list[list[int]] = [[] for _ in SIZES]
        for rank in range(world):
            for line in (run / "samples" / f"rank-{rank}.jsonl").read_text().splitlines():
                record = json.loads(line)
                seen[(record["step"] - 1) // EPOCH].extend(record["sample_ids"])
        assert [sorted(ids) for ids in seen] == [list(range(TRAIN))] * len(SIZES)
        assert all(event["samples"] == VAL for event in events(run, "validate"))


def test_worlds_agree(runs: dict[int, Path]) -> None:
    alone, others = steps(runs[1]), steps(runs[3])
    assert max(abs(one[1] - other[1]) for one, other in zip(alone, others, strict=True)) <= 1e-12
    counts = [[event["correct"] for event in events(run, "validate")] for run in runs.values()]
    assert counts[0] == counts[1]
    assert sum(loss for _, loss, _ in alone[-EPOCH:]) < 0.9 * sum(loss for _, loss, _ in alone[:EPOCH])


@pytest.mark.parametrize("step", [EPOCH, EPOCH + 4], ids=["between two sizes", "amid the epoch of another"])
def test_a_resume_continues_with_the_size_of_its_epoch(
    fleet: Fleet, runs: dict[int, Path], tmp_path: Path, step: int
) -> None:
    run = fleet.train(tmp_path / "run", 1, **GROWS, resume=str(runs[1] / "checkpoints" / f"step-{step:08d}"))
    assert steps(run) == steps(runs[1])[step:]
    assert_same_weights(run, runs[1])


def test_memory_is_enough_once_the_largest_images_were_trained_on(runs: dict[int, Path]) -> None:
    """Want of memory in a later, larger epoch must not pass for one that another start may not meet."""
    notes = [json.loads(path.read_text()) for path in (runs[1] / "restarts").glob("*.json")]
    assert any("step" in note.get("fits", {}).get("parts", []) for note in notes)
