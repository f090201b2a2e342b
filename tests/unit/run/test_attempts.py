"""Starts that are killed before the run can count them are counted by the launcher, and bounded."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT, Trainer, environment, wait_for_step

from tests import patience
from trainyard.core.exits import ExitError
from trainyard.run import attempts, fence

# A torch whose import ends as in a container with too little memory
KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
WAITING = "import time\nprint('importing', flush=True)\nwhile True: time.sleep(0.1)\n"


def launch(
    tmp_path: Path, torch: str, *, logs: bool = True, program: bool = False, **env: str
) -> "subprocess.Popen[str]":
    """Start a pod's launcher of the run tmp_path/run with another torch; `program`: for one that is none of ours."""
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "config.json").write_text(json.dumps({"recipe": "demo", "run": {"dir": str(tmp_path / "run")}}))
    own = environment({"TRAINYARD_JOB": "demo", **env})
    own |= {"TRAINYARD_LOGS": str(tmp_path / "run" / "logs")} if logs else {}
    own |= {"TRAINYARD_RUN_DIR": str(tmp_path / "run")} if program else {}
    own["PYTHONPATH"] = f"{tmp_path}:{own['PYTHONPATH']}"
    ours = ["-m", "trainers.ddp", "--config", str(tmp_path / "config.json")]
    command = [
        sys.executable, "-m", "trainyard", "launch",
        *(["--no-python", "true", "--config", "its-own.json"] if program else ours),
    ]  # fmt: skip
    return subprocess.Popen(command, cwd=ROOT, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def notes(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "run" / "restarts").glob("launch-*.note"))


@pytest.mark.parametrize("program", [False, True], ids=["ours", "program"])
@pytest.mark.parametrize("logs", [True, False])
def test_starts_that_are_killed_while_torch_loads_are_bounded(tmp_path: Path, logs: bool, program: bool) -> None:
    ends = []
    for _ in range(attempts.MOST_TRIES + 1):
        process = launch(tmp_path, KILLED, logs=logs, program=program)
        output, _ = patience.communicate(process)
        ends.append(process.returncode)
    assert ends == [*[-signal.SIGKILL] * attempts.MOST_TRIES, 1]
    assert ("killed within 5 minutes" if program else "killed before training began") in output
    assert "raise global.training.resources.limits.memory" in output
    assert notes(tmp_path) == []  # tried again by hand, it begins anew


def test_a_start_that_is_stopped_or_ends_by_itself_is_not_counted(tmp_path: Path) -> None:
    patience.communicate(launch(tmp_path, KILLED))
    assert len(notes(tmp_path)) == 1
    process = launch(tmp_path, WAITING)
    assert process.stdout is not None
    while process.stdout.readline() != "importing\n":
        assert process.poll() is None
    process.terminate()
    patience.communicate(process)
    assert process.returncode == 143
    assert notes(tmp_path) == []
    patience.communicate(launch(tmp_path, KILLED))
    output, _ = patience.communicate(launch(tmp_path, "raise RuntimeError('broken')\n"))
    assert "broken" in output
    assert notes(tmp_path) == []


def test_a_run_that_has_connected_counts_by_itself(trainer: Trainer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    env = {"TRAINYARD_JOB": "demo", "TRAINYARD_LOGS": str(run / "logs")}
    process = trainer.start(run, 2, env, epochs=200)
    wait_for_step(run, 1, process)
    assert (run / "restarts").is_dir()
    assert notes(tmp_path) == []
    process.send_signal(signal.SIGTERM)
    patience.communicate(process)


def test_nothing_is_counted_outside_a_cluster(tmp_path: Path) -> None:
    patience.communicate(launch(tmp_path, KILLED, TRAINYARD_JOB=""))
    assert notes(tmp_path) == []


def test_storage_that_cannot_be_written_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").write_text("a file, where a folder is wanted")
    monkeypatch.setenv("TRAINYARD_JOB", "demo")
    monkeypatch.setenv("TRAINYARD_LOGS", str(tmp_path / "run" / "logs"))
    for _ in range(attempts.MOST_TRIES + 1):
        assert attempts.count_and_run(lambda: 0) == 0


def test_the_count_is_of_one_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "demo")
    monkeypatch.setenv("TRAINYARD_LOGS", str(tmp_path / "run" / "logs"))
    folder = tmp_path / "run" / "restarts"
    folder.mkdir(parents=True)
    (folder / "launch-demo-worker-7.note").write_text(json.dumps({"tries": attempts.MOST_TRIES}))
    assert attempts.count_and_run(lambda: 0) == 0
    (folder / f"launch-{os.uname().nodename}.note").write_text(json.dumps({"tries": attempts.MOST_TRIES}))
    with pytest.raises(ExitError, match="4 starts of this pod in a row were killed"):
        attempts.count_and_run(lambda: 0)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process as the launcher of a program that is none of ours; returns the note of its starts."""
    monkeypatch.setenv("TRAINYARD_JOB", "demo")
    monkeypatch.setenv("TRAINYARD_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(sys, "argv", ["launch", "--no-python", "train"])
    return tmp_path / "run" / "restarts" / f"launch-{os.uname().nodename}.note"


@pytest.mark.parametrize(
    ("code", "counts"), [(137, True), (139, True), (0, False), (1, False), (138, False), (143, False)]
)
def test_a_program_whose_rank_is_killed_has_not_ended_by_itself(program: Path, code: int, counts: bool) -> None:
    for _ in range(attempts.MOST_TRIES):
        assert attempts.count_and_run(lambda: code) == code
        assert program.exists() == counts
    if counts:
        with pytest.raises(ExitError, match="4 starts of this pod in a row were killed within 5 minutes"):
            attempts.count_and_run(lambda: code)
        assert not program.exists()


def test_a_program_of_minutes_has_begun(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "EARLY_SECONDS", 0.01)

    def run() -> int:
        patience.wait("the count is forgotten", lambda: not program.exists(), patience.still)
        return 0

    assert attempts.count_and_run(run) == 0


def test_a_program_that_is_stopped_is_not_counted(program: Path) -> None:
    def run() -> int:
        assert program.exists()
        attempts.forget_on_stop()
        assert not program.exists()
        return 143

    assert attempts.count_and_run(run) == 143


def test_storage_that_hangs_keeps_no_pod_from_ending(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(attempts, "LAST_SECONDS", 0.01)
    monkeypatch.setattr(attempts, "forget_killed_starts", lambda folder: answers.wait())
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(attempts.count_and_run, lambda: 138)
        try:
            assert ended.result(patience.IDLE) == 138
        finally:
            answers.set()


def test_a_run_that_is_trained_longer_is_not_over_before_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the summary of its former end until then, and a spare pod that ends with 0 would end its job."""
    monkeypatch.setattr(sys, "argv", ["trainyard launch"])
    monkeypatch.setenv("TRAINYARD_JOB", "longer")
    monkeypatch.setenv("TRAINYARD_LOGS", str(tmp_path / "logs"))
    lease = fence.folder_of(tmp_path, 2)
    lease.mkdir(parents=True)
    record = fence.Record(2, "longer-worker-0", "longer", further={"time": 100.5})
    (lease / fence.RECORD).write_bytes(record.encode())
    for finished, over in ((99.5, False), (101.5, True)):
        (tmp_path / "summary.json").write_text(json.dumps({"status": "finished", "finished_at": finished}))
        assert attempts.is_over() == over


def test_a_program_has_finished_where_it_has_in_all_pods_that_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["trainyard launch", "--no-python", "true"])
    for key, value in {"JOB": "demo", "RUN_DIR": str(tmp_path), "SPARES": "1"}.items():
        monkeypatch.setenv(f"TRAINYARD_{key}", value)
    (tmp_path / "restarts").mkdir()
    begun = time.time()
    earlier = {"first": ("demo", begun - 1), "second": ("other", begun + 1)}  # of another try, of another job
    for pod, (job, when) in earlier.items():
        (tmp_path / "restarts" / f"ended-{pod}.note").write_text(json.dumps({"job": job, "finished_at": when}))
    assert not attempts.has_finished(begun, 1)
    attempts.note_end()
    assert attempts.has_finished(begun, 1)
    assert not attempts.has_finished(begun, 2)
