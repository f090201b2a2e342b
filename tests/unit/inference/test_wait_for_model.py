"""An evaluation waits for the model of a run, of the length that the run is to have."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import ROOT, Trainer, environment, hold, wait_for_step
from starting import length_of

from tests import patience
from trainyard import config
from trainyard.core.exits import UserError
from trainyard.inference import wait_for_model

pytestmark = pytest.mark.takes(30)


def evaluation(trainer: Trainer, run: Path, data: Path, processes: int, *more: str) -> Any:
    launcher = ["-m", "trainyard", "launch", "--nproc-per-node", str(processes)] if processes > 1 else []
    out = ["--out", str(run.parent / "out"), "--device", "cpu"]
    return trainer.python(
        *launcher, "-m", "trainyard", "evaluate", "--model", str(run), "--data", str(data), *out, *more
    )


def test_two_processes_wait_for_a_run_that_still_trains(trainer: Trainer, data: Path, tmp_path: Path) -> None:
    """They start before the run directory is there, and measure what the run publishes."""
    run = tmp_path / "run"
    settings = tmp_path / "config.json"
    settings.write_text(json.dumps({"recipe": "demo", "epochs": 2}))
    waits = evaluation(trainer, run, data, 2, "--wait", "3600", "--run-config", str(settings))
    assert waits.stdout is not None
    first = next((line for line in waits.stdout if line.startswith("evaluate: waiting for the model of")), "")
    assert first, "it does not wait"
    process = trainer.start(run, 1, hold(tmp_path / "places", "3"))
    wait_for_step(run, 3, process)
    assert waits.poll() is None
    (tmp_path / "places" / "3").unlink()
    output, _ = patience.communicate(process)
    assert process.returncode == 0, output
    said, _ = patience.communicate(waits)
    assert waits.returncode == 0, said
    assert (first + said).count(f"waiting for the model of {run}: the run has not finished") <= 1, said
    summary = json.loads((run / "summary.json").read_text())
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["samples"], result["top1"]) == (summary["validation_samples"], summary["top1"])


@pytest.mark.parametrize("what", ["evaluate", "predict"])
def test_the_first_line_comes_before_pytorch(what: str, tmp_path: Path) -> None:
    """It takes half a minute where storage is slow, in which nothing else is said; --help says nothing of it."""
    (tmp_path / "torch.py").write_text("import sys\nprint('torch', flush=True)\nsys.exit(7)\n")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    command = [sys.executable, "-m", "trainyard", what]
    said = patience.run([*command, "--model", "x", "--data", "y"], cwd=ROOT, env=env)
    assert (said.returncode, said.stdout) == (7, f"{what}: PyTorch is loaded, then the model and the images\ntorch\n")
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    second = patience.run(command, cwd=ROOT, env={**env, **place, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"})
    assert second.stdout == "torch\n"
    assert patience.run([*command, "--help"], cwd=ROOT, env=env).stdout == "torch\n"


def test_what_a_run_lacks_is_said(trainer: Trainer, tmp_path: Path) -> None:
    asked = lambda epochs: length_of(config.build({"recipe": "demo", "epochs": epochs}))  # noqa: E731
    run = tmp_path / "run"
    assert wait_for_model.lacks(run) == "there is no such run yet"
    trainer.train(run)
    assert wait_for_model.lacks(run) == ""
    assert wait_for_model.lacks(run / "published") == "", "the folder of a model needs no run around it"
    assert wait_for_model.lacks(run, asked(2)) == ""
    assert wait_for_model.lacks(run, asked(3)) == "the run has ended after 16 steps and is to be longer"
    shutil.move(run / "published" / "SHA256SUMS", tmp_path)
    assert wait_for_model.lacks(run) == "its model is not published yet"
    (run / "failed.json").write_text(json.dumps({"message": "the loss of step 3 is nan\nmore", "code": 77}))
    assert wait_for_model.lacks(run) == "the run has failed (the loss of step 3 is nan)"
    assert yaml.safe_load((run / "config.yaml").read_text())["epochs"] == 2


def test_a_wait_that_is_over_says_what_was_lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock whose time passes only as it sleeps."""
    said: list[str] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(wait_for_model, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with pytest.raises(UserError, match=r"there is no such run yet, after 1 s. See what its job waits for"):
        wait_for_model.wait_for_model(tmp_path / "run", 1, None, said.append)
    assert said == [f"waiting for the model of {tmp_path / 'run'}: there is no such run yet; 1 s left"]
