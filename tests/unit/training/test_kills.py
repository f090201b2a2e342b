"""`kill -9` of a random rank at random places and steps: the resumed run ends with the undisturbed run's bits.

KILLS_SEED=N repeats the kills of a run that failed; the seed is in its output.
"""

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Trainer, events
from killed_models import STEPS
from published import assert_same_weights

from trainyard.run import checkpoint

pytestmark = pytest.mark.takes(20)

SETTINGS: dict[str, Any] = {
    "precision": "fp32", "model.batch_norm": "local", "model.name": "killed_models:net", "epochs": 3,
    "ema.decay": 0.9, "augment.mixup": 0.2, "run.max_restarts": 1000, "validate.batch": 100,
}  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(session_trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of two processes without interruption: dropout, local BatchNorm, mixup, momentum, an average."""
    return session_trainer.train(tmp_path_factory.mktemp("calm") / "run", 2, **SETTINGS)


def killed_to_the_end(trainer: Trainer, run: Path, seed: int, kills: int, in_place: int) -> list[str]:
    """Run until it is finished; processes are restarted in place so many times, then the launcher is. What was done."""
    said: list[str] = []
    for done in range(0, kills + 1, in_place + 1):
        env = {"KILLS": str(kills), "KILLS_DONE": str(done), "KILLS_SEED": str(seed), "KILLS_RUN": str(run),
               "PET_MAX_RESTARTS": str(in_place)}  # fmt: skip
        code, output = trainer.run(run, 2, env, **SETTINGS)
        found = re.findall(r"KILL .*", output)
        print(*found, sep="\n", flush=True)
        said += found
        assert code == (0 if done + in_place >= kills else 137), output
    return said


@pytest.mark.parametrize(
    ("kills", "in_place"),
    [(3, 1), pytest.param(25, 4, marks=pytest.mark.soak), pytest.param(25, 0, marks=pytest.mark.soak)],
)
def test_killed_at_random_and_resumed_to_the_same_bits(
    trainer: Trainer, undisturbed: Path, tmp_path: Path, kills: int, in_place: int
) -> None:
    seed = int(os.environ.get("KILLS_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"KILLS_SEED={seed}")
    run = tmp_path / "run"
    assert len(killed_to_the_end(trainer, run, seed, kills, in_place)) == kills

    calm, found = (checkpoint.at(path / "checkpoints" / f"step-{STEPS:08d}").load() for path in (undisturbed, run))
    assert sorted(calm) == ["ema", "model", "optimizer"]
    assert equal(calm, found)
    assert_same_weights(run, undisturbed)
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
