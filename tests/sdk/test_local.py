"""The local backend, by the example that uses it, and what it does without the example's help."""

import json
import os
import sys
from collections import deque
from pathlib import Path

import functions
import pytest

from tests import documents, patience

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "sdk"


def test_a_function_runs_on_two_processes_of_this_machine(tmp_path: Path) -> None:
    results, work = tmp_path / "results", tmp_path / "work"
    work.mkdir()
    more = {"--processes 2": f"--processes 2 --global-batch 64 --results {results}"}
    done = documents.run("sdk.md", "local.py --processes 2", more, TMPDIR=work)
    assert done.stdout.count("epoch 2 of 2") == 1, "each line is shown once"
    summary = json.loads((results / "summary.json").read_text())
    assert (summary["processes"], summary["samples_per_step"]) == (2, 64)
    assert (results / "model.pth").exists()
    assert list(work.iterdir()) == [], "nothing is left behind"


def test_alone_the_backend_has_no_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubeflow.trainer import CustomTrainer, LocalProcessBackendConfig, TrainerClient

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "ensurepip.py").touch()  # in place of Python's: the job needs no pip
    client = TrainerClient(LocalProcessBackendConfig())
    trainer = CustomTrainer(functions.train_ddp, env={"PYTHONPATH": str(tmp_path)})
    job = client.train(runtime="torch-distributed", trainer=trainer)
    deque(client.get_job_logs(job, follow=True), maxlen=0)
    assert client.wait_for_job_status(job, {"Complete", "Failed"}, timeout=3600).status == "Failed"
    assert "bin/torchrun: No such file" in "\n".join(client.get_job_logs(job))


def test_wrong_input_is_told_in_words(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    done = patience.run(
        [python, SCRIPTS / "local.py"], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "torchrun is missing" in done.stderr
    assert "--install" in done.stderr
