"""A run fails at every named point of its life (faulty.POINTS): right exit code, bounded, and resumed to the same bits.

FAULTS_SEED=N repeats the faults of a soak that failed; the seed is in its output.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import faulty
import pytest
import torch
from conftest import ROOT, environment
from faulty import CODES, FIRST, LATER, POINTS, STEPWISE
from forked import Fleet

from tests import patience

pytestmark = [pytest.mark.takes(90), pytest.mark.ranks(2)]

STEPS = 6
SETTINGS: dict[str, Any] = {
    "precision": "fp32", "model.batch_norm": "local", "model.name": "little_models:dropout", "epochs": None,
    "max_steps": STEPS, "checkpoint.every_steps": 2, "validate.batch": 300, "augment.mixup": 0.2, "ema.decay": 0.9,
}  # fmt: skip
ENDLESS = {"run.max_restarts": 1000}


def start(fleet: Fleet, run: Path, fault: str, world: int = 1, **over: Any) -> tuple[list[int], str]:
    """One start of a run that fails as told, or not: exit codes by rank, and output."""
    env = {"FAULT": fault, **over.pop("env", {})}
    return fleet.wait(fleet.start(run, world, "faulty", env, **{**SETTINGS, **over}))


def weights(run: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run / "published" / "model.pth", weights_only=True)
    return state


def assert_same(run: Path, undisturbed: Path) -> None:
    one, other = weights(run), weights(undisturbed)
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert (run / "report.html").exists()


@pytest.fixture(scope="module")
def undisturbed(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet.train(tmp_path_factory.mktemp("calm") / "run", 1, **SETTINGS)


@pytest.fixture(scope="module")
def undisturbed2(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet.train(tmp_path_factory.mktemp("calm") / "run", 2, **SETTINGS)


def test_killed_at_every_point_and_resumed_to_the_same_bits(fleet: Fleet, tmp_path: Path, undisturbed: Path) -> None:
    run = tmp_path / "run"
    for point in POINTS:
        if point in ("released", "leaving", "left"):
            (run / "summary.json").unlink(missing_ok=True)  # else the run is over, and its start ends with 0
        codes, output = start(fleet, run, f"{point} kill", **ENDLESS)
        assert codes == [-9], f"{point}: {output}"
    (run / "summary.json").unlink()
    codes, output = start(fleet, run, "", **ENDLESS)
    assert codes == [0], output
    assert_same(run, undisturbed)
    assert not list((run / "checkpoints").glob(".*"))


def test_every_point_is_a_function_that_is_there() -> None:
    for point in POINTS:
        faulty.install(point, "kill", rank="another")


@pytest.mark.parametrize("point", ["counted", "connecting", "opening", "leased", "built", "step", "copied"])
def test_no_failure_is_retried_forever(fleet: Fleet, tmp_path: Path, point: str) -> None:
    """Also one that no handler sees, before the run directory is entered."""
    once = {"run.max_restarts": 1, "env": {"TRAINYARD_JOB": "job-a"}}
    for code in (-9, -9, 1):
        codes, output = start(fleet, tmp_path / "run", f"{point} kill", **once)
        assert codes == [code], output
    assert f"1 restarts of {tmp_path / 'run'} without a new checkpoint" in output


def test_a_crash_while_torch_is_loaded_is_counted_too(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import os\nos.abort()\n")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    run = tmp_path / "run"
    options = ["--recipe=demo", f"--set=run.dir={run}", "--set=run.max_restarts=1"]
    codes = [
        patience.run([sys.executable, "-m", "trainers.ddp", *options], cwd=ROOT, env=env).returncode for _ in range(3)
    ]
    assert codes == [-signal.SIGABRT, -signal.SIGABRT, 1]


@pytest.mark.parametrize(
    ("point", "action"),
    [("connecting", "cuda"), ("step", "cuda"), ("validating", "cuda"), ("copied", "cuda"), ("leaving", "cuda"),
     ("connecting", "nccl"), ("begun", "nccl"), ("left", "nccl"), ("opening", "stale"), ("entering", "stale"),
     ("copied", "stale")],
)  # fmt: skip
def test_what_may_heal_is_retried_wherever_it_happens(
    fleet: Fleet, tmp_path: Path, undisturbed: Path, point: str, action: str
) -> None:
    run = tmp_path / "run"
    codes, output = start(fleet, run, f"{point} {action}")
    assert codes == [CODES[action]], output
    codes, output = start(fleet, run, "")
    assert codes == [0], output
    assert_same(run, undisturbed)


def test_the_one_that_gives_up_says_why_the_others_failed(fleet: Fleet, tmp_path: Path) -> None:
    once = {"run.max_restarts": 0, "env": {"TRAINYARD_JOB": "job-a"}}
    assert start(fleet, tmp_path / "run", "step cuda", **once)[0] == [201]
    codes, output = start(fleet, tmp_path / "run", "", **once)
    assert codes == [1]
    assert "The last start ended with 201: rank 0: a GPU failed: AcceleratorError: CUDA error: uncorrectable" in output


def test_memory_that_is_too_small_names_the_key_and_is_not_retried(fleet: Fleet, tmp_path: Path) -> None:
    codes, output = start(fleet, tmp_path / "run", "forward memory")
    assert codes == [2]
    said = (
        "the GPU's memory is too small (CUDA out of memory. Tried to allocate 2.00 GiB.); batch.micro = 0, no limit, "
        "so a forward takes 8 samples: set batch.micro to 4 or less; a validation takes validate.batch = 300"
    )
    assert said in output
    assert said in json.loads((tmp_path / "run" / "failed.json").read_text())["message"]


def test_a_checkpoint_whose_storage_fails_once_is_written_again(
    fleet: Fleet, tmp_path: Path, undisturbed: Path
) -> None:
    for point in ("written", "described", "renamed"):
        run = tmp_path / point
        codes, output = start(fleet, run, f"{point} stale")
        assert codes == [0], output
        assert "step-00000002: Stale file handle; retried for up to" in output
        assert_same(run, undisturbed)


def test_an_unknown_error_is_tried_once_more(fleet: Fleet, tmp_path: Path, undisturbed: Path) -> None:
    job = {"env": {"TRAINYARD_JOB": "job-a"}}
    run = tmp_path / "once"
    codes, output = start(fleet, run, "step bug", **job)
    assert codes == [202], output
    assert "ValueError: the code has a fault (tried once more" in output
    assert start(fleet, run, "", **job)[0] == [0]
    assert_same(run, undisturbed)

    run = tmp_path / "always"
    assert [start(fleet, run, "step bug", **job)[0] for _ in range(2)] == [[202], [1]]
    assert start(fleet, tmp_path / "shell", "step bug")[0] == [1]  # a person sees it at once


@pytest.mark.parametrize("rank", [0, 1])
def test_a_peer_that_dies_while_the_group_forms_is_retried(
    fleet: Fleet, tmp_path: Path, undisturbed2: Path, rank: int
) -> None:
    run = tmp_path / "run"
    codes, output = start(fleet, run, f"connecting kill {rank}", 2, **{"comm.timeout_seconds": 10})
    assert (codes[rank], codes[1 - rank]) == (-9, 138), output
    codes, output = start(fleet, run, "", 2)
    assert codes == [0, 0], output
    assert_same(run, undisturbed2)


def test_one_of_two_fails_and_the_other_ends_with_it(fleet: Fleet, tmp_path: Path, undisturbed2: Path) -> None:
    run = tmp_path / "run"
    for fault in (
        "opened kill 1",
        "begun cuda 1",
        "forward kill 1 3",
        "stepped cuda 0",
        "validating cuda 1",
        "leaving kill 1",
    ):
        _, action, rank = (*fault.split(), "0")[:3]
        codes, output = start(fleet, run, fault, 2, **ENDLESS)
        assert codes[int(rank)] == CODES[action], f"{fault}: {output}"
        assert codes[1 - int(rank)] == 138, f"{fault}: {output}"
        (run / "summary.json").unlink(missing_ok=True)
    codes, output = start(fleet, run, "", 2, **ENDLESS)
    assert codes == [0, 0], output
    assert_same(run, undisturbed2)


@pytest.mark.soak
def test_two_hundred_kills_and_faults(fleet: Fleet, tmp_path: Path, undisturbed2: Path) -> None:
    seed = int(os.environ.get("FAULTS_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"FAULTS_SEED={seed}")
    draw, done, runs = random.Random(seed), 0, 0
    anywhere = [point for point in POINTS if point not in LATER and point != "connecting"]  # that takes comm.timeout
    while done < 200:
        run, runs = tmp_path / f"run-{runs}", runs + 1
        codes: list[int] = []
        while codes != [0, 0]:
            point = draw.choice(anywhere if done < 200 else [""])
            action = draw.choice(["kill", "kill", "cuda", "nccl", "stale"])
            rank = 0 if point in FIRST else draw.randrange(2)
            hit = draw.randrange(1, 4) if point in STEPWISE else 1
            fault = f"{point} {action} {rank} {hit}" if point else ""
            codes, output = start(fleet, run, fault, 2, **ENDLESS)
            print(done, fault, codes, flush=True)
            assert set(codes) <= {0, 138, CODES[action]}, f"{fault}: {output}"
            done += CODES[action] in codes
        assert_same(run, undisturbed2)
