"""Signals, faults and competing runs of `python -m trainers.ddp`: nothing is lost, and every end has its exit code."""

import json
import os
import select
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Trainer, events, hold, ranks_of, wait_for_step
from published import assert_same_weights

from tests import documents, patience
from trainyard.core import interrupts
from trainyard.run import fence

pytestmark = pytest.mark.takes(75)


@pytest.fixture(scope="module")
def undisturbed(session_trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of two processes without interruption; with dropout and local BatchNorm."""
    return session_trainer.train(tmp_path_factory.mktemp("calm") / "run", 2, **kind())


def kind() -> dict[str, Any]:
    return {"precision": "fp32", "model.batch_norm": "local", "model.name": "little_models:dropout"}


def losses(run: Path) -> list[tuple[int, float]]:
    return [(event["step"], event["loss"]) for event in events(run, "train")]


def test_sigterm_saves_on_all_ranks_at_the_same_step(trainer: Trainer, undisturbed: Path, tmp_path: Path) -> None:
    run, places = tmp_path / "run", tmp_path / "places"
    process = trainer.start(run, 2, hold(places, "5"), **kind(), **{"checkpoint.every_steps": 0})
    wait_for_step(run, 5, process)
    os.kill(ranks_of(process)[1], signal.SIGTERM)  # one rank is told; all stop
    (places / "5").unlink()
    output, _ = patience.communicate(process)
    assert process.returncode == 143, output
    summary = json.loads((run / "summary.json").read_text())
    stopped = summary["steps"]
    assert summary["status"] == "stopped"
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{stopped:08d}"]
    for rank in (0, 1):
        lines = (run / "samples" / f"rank-{rank}.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["step"] == stopped

    process = trainer.start(run, 2, hold(places, "3"), **kind(), **{"checkpoint.every_steps": 0})
    wait_for_step(run, stopped + 3, process)
    process.send_signal(signal.SIGTERM)  # the launcher is told, as in a pod
    output, _ = patience.communicate(process)
    assert process.returncode == 143, output
    again = json.loads((run / "summary.json").read_text())["steps"]
    assert again >= stopped + 3
    assert events(run, "resume")[-1] == {**events(run, "resume")[-1], "step": stopped, "lost_steps": 0}

    trainer.train(run, 2, **kind(), **{"checkpoint.every_steps": 0})
    assert_same_weights(run, undisturbed)
    assert losses(run) == losses(undisturbed)


@pytest.mark.parametrize("processes", [1, 2])  # without a launcher, and with it
def test_ctrl_c_saves_and_a_second_one_ends_at_once(trainer: Trainer, tmp_path: Path, processes: int) -> None:
    run, places, never = tmp_path / "run", tmp_path / "places", {"checkpoint.every_steps": 0}
    process = trainer.start(run, processes, hold(places, "3"), **kind(), **never)
    wait_for_step(run, 3, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all processes of the group get it
    if processes == 1:  # a launcher's ranks go on once they get SIGTERM; without a hold they could end before that
        (places / "3").unlink()
    output, _ = patience.communicate(process)
    assert process.returncode == 143, output
    stopped = json.loads((run / "summary.json").read_text())["steps"]
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{stopped:08d}"]
    said = f"{interrupts.SAYS}error: stopped at step {stopped}; saved, the next start of this run continues there\n"
    assert "death signal" not in output
    assert [line for line in output.splitlines() if not line.startswith("step")][-2:] == said.splitlines()

    process = trainer.start(run, processes, hold(places, "2-always"), **kind(), **never)
    wait_for_step(run, stopped + 2, process)

    def interrupt() -> bool:  # until it is not taken for the same Ctrl-C
        if ended := process.poll() is not None:
            return ended
        os.killpg(process.pid, signal.SIGINT)
        return False

    patience.wait("it does not end", interrupt, patience.still)
    output, _ = patience.communicate(process)
    assert process.returncode == 130, output
    assert "error: interrupted from the keyboard" in output
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{stopped:08d}"], "it is held at a step"


@pytest.fixture
def terminal() -> Iterator[tuple[int, Callable[[], None]]]:
    """A terminal, as the program has it, and what closes it; until then it shows what is printed."""
    shown, given = os.openpty()
    closing = threading.Event()

    def show() -> None:
        while not closing.wait(0.01):
            if select.select([shown], [], [], 0)[0]:
                os.read(shown, 1 << 16)
        os.close(shown)

    shows = threading.Thread(target=show)
    shows.start()

    def close() -> None:
        closing.set()
        shows.join()

    yield given, close
    close()


@pytest.mark.parametrize("processes", [1, 2])  # without a launcher, and with it
def test_a_closed_terminal_saves(
    trainer: Trainer, tmp_path: Path, terminal: tuple[int, Callable[[], None]], processes: int
) -> None:
    run, places = tmp_path / "run", tmp_path / "places"
    given, close = terminal
    process = trainer.start(run, processes, hold(places, "3"), stdout=given, **kind(), **{"checkpoint.every_steps": 0})
    os.close(given)
    wait_for_step(run, 3, process)
    close()
    for _ in range(2):  # the shell passes it on, and the kernel sends it
        os.killpg(process.pid, signal.SIGHUP)
    if processes == 1:  # a launcher's ranks go on once they get SIGTERM
        (places / "3").unlink()
    patience.wait(
        "it does not end", lambda: process.poll() is not None, lambda: patience.processor_seconds(process.pid)
    )
    assert process.returncode == 143
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{summary['steps']:08d}"]


def test_the_documents_commands_stop_and_resume(trainer: Trainer, tmp_path: Path) -> None:
    commands = documents.text("interruptions.md", "run.dir=build/stopped").strip().splitlines()
    assert len(commands) == 2
    run, done = tmp_path / "build" / "stopped", 0
    for command in commands:
        python, *words = shlex.split(command, comments=True)
        assert python == "python"
        process = trainer.python(*words, cwd=tmp_path)
        wait_for_step(run, done + 2, process)
        process.send_signal(signal.SIGTERM)
        output, _ = patience.communicate(process)
        assert process.returncode == 143, output
        assert [event["step"] for event in events(run, "resume")] == ([done] if done else [])
        done = json.loads((run / "summary.json").read_text())["steps"]


def test_checkpoints_by_seconds_bound_what_a_kill_costs(trainer: Trainer, undisturbed: Path, tmp_path: Path) -> None:
    run, often = tmp_path / "run", {"checkpoint.every_steps": 0, "checkpoint.every_seconds": 1}
    env = {"STEP_SECONDS": "0.2", **hold(tmp_path / "places", "12")}  # more than a second later
    process = trainer.start(run, 2, env, **kind(), **often)

    def saves() -> list[str]:
        found = [path.parent.name for path in run.glob("checkpoints/step-*/manifest.json")]
        assert found or process.poll() is None, process.communicate()[0]
        return found

    saved = patience.wait("no checkpoint came by itself", saves, lambda: patience.processor_seconds(process.pid))
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    patience.communicate(process)
    trainer.train(run, 2, **kind(), **often)
    step, end = int(saved[0].removeprefix("step-")), json.loads((undisturbed / "summary.json").read_text())["steps"]
    assert 0 < step < end, "the last step is saved without being asked to"
    assert events(run, "resume")[0]["step"] >= step
    assert_same_weights(run, undisturbed)
    assert losses(run) == losses(undisturbed)


def test_damaged_checkpoint_is_passed_over(trainer: Trainer, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = trainer.start(run, 2, hold(tmp_path / "places", "10"), **kind())
    wait_for_step(run, 10, process)
    newest = run / "checkpoints" / "step-00000008"  # written while the steps after it are done
    patience.wait("it is not saved", (newest / "manifest.json").exists, lambda: patience.processor_seconds(process.pid))
    process.kill()  # the launcher; its ranks end with it
    process.communicate()
    with (newest / "model.safetensors").open("r+b") as file:
        file.seek(200)
        file.write(b"\xff\x00\xff")
    code, output = trainer.run(run, 2, **kind())
    assert code == 0, output
    assert f"{newest.name} is damaged (model.safetensors has changed" in output
    resumed = events(run, "resume")[-1]
    assert resumed["step"] == int(newest.name[5:]) - 4
    assert resumed["lost_steps"] >= 4
    assert_same_weights(run, undisturbed)


def test_nan_ends_with_77_and_is_not_retried(trainer: Trainer, tmp_path: Path) -> None:
    run, ill = tmp_path / "run", {"model.name": "little_models:nan", "checkpoint.every_steps": 2, "log.every_steps": 3}
    code, output = trainer.run(run, 2, **ill)
    assert code == 77, output
    failed = json.loads((run / "failed.json").read_text())
    assert (failed["code"], failed["step"], failed["ranks"]) == (77, 4, [0, 1])
    ids = [i for rank in (0, 1) for i in sample_ids(run, rank, 4)]
    assert failed["sample_ids"] == ids
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-00000002"]
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"

    before = (run / "metrics.jsonl").read_bytes()
    code, output = trainer.run(run, 1, **ill)
    assert code == 77
    assert "the loss of step 4 is nan" in output
    assert (run / "metrics.jsonl").read_bytes() == before, "it was tried again"

    code, output = trainer.run(run, 1, **ill, **{"optimizer.lr": 0.01, "max_steps": 3, "epochs": None})
    assert code == 0, output  # other settings are another try
    assert not (run / "failed.json").exists()


def sample_ids(run: Path, rank: int, step: int) -> list[int]:
    records = map(json.loads, (run / "samples" / f"rank-{rank}.jsonl").read_text().splitlines())
    found: list[int] = next(record["sample_ids"] for record in records if record["step"] == step)
    return found


def test_fault_on_one_rank_is_the_exit_code_and_restarts_are_bounded(trainer: Trainer, tmp_path: Path) -> None:
    run, ill = tmp_path / "run", {"model.name": "little_models:crash", "run.max_restarts": 0}
    code, output = trainer.run(run, 2, {"CRASH_RANK": "1"}, **ill)
    assert code == 1, output
    assert "error: ValueError: the model has a fault" in output
    assert "lost contact with another process" in output
    assert "the model has a fault" in (run / "logs" / "rank-1.log").read_text()
    code, output = trainer.run(run, 1, **ill)
    assert code == 1, output
    assert "0 restarts of" in output
    assert "without a new checkpoint" in output
    assert "the model has a fault" not in output


def test_newest_job_takes_the_run_directory(trainer: Trainer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    env = {"STEP_SECONDS": "0.3", "TRAINYARD_JOB": "job-a", **hold(tmp_path / "places", "2")}
    old = trainer.start(run, 2, env, epochs=12)
    wait_for_step(run, 2, old)
    new = trainer.start(run, 1, {"TRAINYARD_JOB": "job-b"}, epochs=12)
    taken = fence.folder_of(run, 2)
    patience.wait("the lease is not taken", taken.exists, lambda: patience.processor_seconds(new.pid))
    (tmp_path / "places" / "2").unlink()
    output, _ = patience.communicate(old)
    assert old.returncode == 2, output
    assert "taken over by job-b" in output
    assert not (run / "failed.json").exists()
    output, _ = patience.communicate(new)
    assert new.returncode == 0, output
    assert [step for step, _ in losses(run)] == list(range(1, 97))
    assert json.loads((run / "lease.json").read_text())["superseded"] == ["job-a"]
    begun = events(run, "start")[-1]["time"]
    assert json.loads((run / "heartbeats" / "rank-1.json").read_text())["time"] < begun, "the older job wrote on"
    assert json.loads((run / "heartbeats" / "rank-0.json").read_text())["time"] > begun


def test_another_run_is_refused_with_both_values(trainer: Trainer, undisturbed: Path) -> None:
    code, output = trainer.run(undisturbed, 1, **kind(), **{"batch.global": 16})
    assert code == 2
    assert "batch.global = 16, but" in output
    assert "holds a run with 8" in output
    code, output = trainer.run(undisturbed, 1, **{**kind(), "model.name": "little_models:net"}, **{"epochs": 3})
    assert code == 2
    assert "model.name = 'little_models:net', but" in output
    assert not (undisturbed / "failed.json").exists()  # a person may correct it and try again


def test_never_starts_afresh_once_per_job(trainer: Trainer, tmp_path: Path) -> None:
    run, short = tmp_path / "run", {"max_steps": 2, "epochs": None, "resume": "never", "batch.global": 16}
    trainer.train(run, 1, **{**short, "resume": "auto", "batch.global": 8})
    code, output = trainer.run(run, 1, {"TRAINYARD_JOB": "job-b"}, **short)
    assert code == 0, output
    assert not events(run, "resume")
    assert json.loads((run / "previous" / "001" / "summary.json").read_text())["identity"]["batch.global"] == 8
    code, output = trainer.run(run, 1, {"TRAINYARD_JOB": "job-b"}, **short)
    assert (code, "is finished" in output) == (0, True)
    assert not (run / "previous" / "002").exists()


def snapshot(run: Path) -> dict[str, tuple[int, int]]:
    """What a run directory holds; heartbeats and the lease's own files change by themselves."""
    return {
        str(path.relative_to(run)): (path.stat().st_ino, path.stat().st_size)
        for path in run.rglob("*")
        if path.is_file() and not {"leases", "heartbeats"} & set(path.relative_to(run).parts)
    }


def test_another_namespace_with_the_same_release_is_refused_and_leaves_no_trace(
    trainer: Trainer, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "run"
    run.parent.mkdir()

    def of(namespace: str) -> dict[str, str]:
        logs = {"TRAINYARD_LOGS": str(run / "logs")}
        return {**logs, "TRAINYARD_JOB": "run-0a1b2c3d", "TRAINYARD_NAMESPACE": namespace, "TRAINYARD_RELEASE": "run"}

    first = trainer.start(run, 2, {**hold(tmp_path / "places", "6"), **of("team-a")}, **kind())
    wait_for_step(run, 6, first)
    first.send_signal(signal.SIGTERM)
    output, _ = patience.communicate(first)
    assert first.returncode == 143, output
    before = snapshot(run)
    code, output = trainer.run(run, 2, of("team-b"), **kind())
    assert code == 2, output
    assert f"{run} belongs to release team-a/run" in output
    assert "this is team-b/run" in output
    assert "global.training.name" in output
    assert "run.adopt" in output
    assert snapshot(run) == before
    code, output = trainer.run(run, 2, of("team-a"), **kind())
    assert code == 0, output
    assert_same_weights(run, undisturbed)  # its owner continues as if nobody had come
    code, output = trainer.run(run, 1, of("team-b"), **kind())
    assert code == 2, "a stranger does not hear that its run is finished, either"
    code, output = trainer.run(run, 1, of("team-b"), **kind(), **{"run.adopt": True})
    assert (code, "is finished" in output) == (0, True), output
