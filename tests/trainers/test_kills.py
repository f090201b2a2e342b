"""`kill -9` of a random rank at random places and steps: the resumed run ends with the undisturbed run's bits.

KILLS_SEED=N repeats the kills of a run that failed; the seed stands in its output.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Trainer, events
from killed_models import PLACES

from trainers import checkpoint

EPOCHS, STEPS = 3, 24
SETTINGS: dict[str, Any] = {
    "precision": "fp32", "model.batch_norm": "local", "model.name": "killed_models:net", "epochs": EPOCHS,
    "ema.decay": 0.9, "augment.mixup": 0.2, "run.max_restarts": 1000, "validate.batch": 100,
}  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(session_trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes come to undisturbed: with dropout, local BatchNorm, mixup, momentum and an average."""
    return session_trainer.train(tmp_path_factory.mktemp("calm") / "run", 2, **SETTINGS)


def plan(choice: random.Random, kills: int) -> list[tuple[int, str, int, float]]:
    """Kills in the order of their steps, so that each is reached; only the first process writes."""
    places = [choice.choice(PLACES) for _ in range(kills)]
    steps = sorted(choice.randrange(STEPS) for _ in range(kills))
    ranks = [0 if place == "writing" else choice.randrange(2) for place in places]
    return [(*kill, choice.random()) for kill in zip(ranks, places, steps, strict=True)]


def killed_to_the_end(trainer: Trainer, run: Path, kills: list[Any], in_place: int) -> None:
    """Run until it is finished; processes are restarted in place so many times, then the launcher is."""
    done = 0
    while True:
        env = {"KILLS": json.dumps(kills), "KILLS_DONE": str(done), "KILLS_RUN": str(run),
               "PET_MAX_RESTARTS": str(in_place)}  # fmt: skip
        code, output = trainer.run(run, 2, env, **SETTINGS)
        done += in_place + 1
        if done > len(kills):
            assert code == 0, output
            return
        assert code == 137, output


@pytest.mark.parametrize(
    ("kills", "in_place"),
    [(5, 3), pytest.param(25, 4, marks=pytest.mark.soak), pytest.param(25, 0, marks=pytest.mark.soak)],
)
@pytest.mark.timeout(1800)
def test_killed_at_random_and_resumed_to_the_same_bits(
    trainer: Trainer, undisturbed: Path, tmp_path: Path, kills: int, in_place: int
) -> None:
    seed = int(os.environ.get("KILLS_SEED") or random.SystemRandom().randrange(1_000_000))
    wanted = plan(random.Random(seed), kills)
    print(f"KILLS_SEED={seed}", *wanted, sep="\n")
    run = tmp_path / "run"
    killed_to_the_end(trainer, run, wanted, in_place)

    calm, found = (checkpoint.at(path / "checkpoints" / f"step-{STEPS:08d}").load() for path in (undisturbed, run))
    assert sorted(calm) == ["ema", "model", "optimizer"]
    assert equal(calm, found)
    published = [torch.load(path / "published" / "model.pth", weights_only=True) for path in (undisturbed, run)]
    assert equal(*published)
    assert losses(run) == losses(undisturbed)  # each step once
    for rank in (0, 1):
        name = f"samples/rank-{rank}.jsonl"
        assert (run / name).read_text() == (undisturbed / name).read_text()
    assert [path.name for path in (run / "checkpoints").glob(".*")] == []


def losses(run: Path) -> list[tuple[int, float]]:
    return [(event["step"], event["loss"]) for event in events(run, "train")]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)
