"""The run directory's lease, restarts and failures, without any training."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from trainers import config
from trainers.config import Config
from trainers.exits import ExitError, UserError
from trainers.run import checkpoint, directory, lease, starts
from trainers.run.directory import RunDirectory


def settings(path: Path, **layer: Any) -> Config:
    return config.build({"recipe": "demo", "run": {"dir": str(path)}}, layer)


def enter(path: Path, **layer: Any) -> RunDirectory:
    directory = RunDirectory(settings(path, **layer))
    directory.enter()
    return directory


def test_the_newest_holder_has_the_lease(tmp_path: Path) -> None:
    first = enter(tmp_path)
    assert not first.lost()
    second = enter(tmp_path)
    assert first.lost()
    assert not second.lost()
    first.release()
    assert not json.loads((tmp_path / "lease.json").read_text()).get("released")


def test_superseded_job_stays_out_while_the_newer_one_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.0)
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    enter(tmp_path)
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    newer = enter(tmp_path)
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    monkeypatch.setattr(time, "sleep", lambda _: newer.lost())  # the newer one keeps its lease up meanwhile
    with pytest.raises(UserError, match="taken over by b"):
        enter(tmp_path)
    newer.release()
    enter(tmp_path)
    assert newer.lost()


def test_restarts_without_progress_are_bounded(tmp_path: Path) -> None:
    for _ in range(4):
        starts.count(settings(tmp_path))
    for _ in range(2):
        with pytest.raises(ExitError, match=r"3 restarts of .* without a new checkpoint") as caught:
            starts.count(settings(tmp_path))
        assert caught.value.code == 1
    checkpoint.save(tmp_path / "checkpoints", 5, {"model": {}}, {})
    starts.count(settings(tmp_path))
    for _ in range(5):
        starts.count(settings(tmp_path))
        enter(tmp_path).release(stopped=True)  # stopped from outside: no fault of the run
    starts.count(settings(tmp_path, seed=9))
    assert json.loads((tmp_path / "restarts" / "none.json").read_text())["count"] == 0


def test_an_older_job_does_not_touch_the_newer_ones_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in ("new", "old", "new", "old", "new", "new"):
        monkeypatch.setenv("TRAINYARD_JOB", job)
        starts.count(settings(tmp_path))
    monkeypatch.setenv("TRAINYARD_JOB", "new")
    with pytest.raises(ExitError, match="3 restarts"):
        starts.count(settings(tmp_path))


def test_where_a_checkpoint_was_step_0_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    folder = tmp_path / "checkpoints"
    starts.count(settings(tmp_path))
    assert enter(tmp_path).find_checkpoint() == (None, [])
    checkpoint.save(folder, 5, {"model": {}}, {})
    (folder / "step-00000005" / "manifest.json").unlink()
    for _ in range(2):  # also once it is set aside
        with pytest.raises(
            UserError, match=r"this run had one \(damaged-step-00000005 cannot be used\).*resume to never"
        ):
            enter(tmp_path).find_checkpoint()
    (folder / "damaged-step-00000005").rename(folder / "step-00000005")
    starts.count(settings(tmp_path))
    shutil.rmtree(folder)  # a snapshot of the claim was restored in part, or someone made room
    with pytest.raises(UserError, match=r"this run had one \(step-00000005 is gone\)"):
        enter(tmp_path).find_checkpoint()
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    starts.count(settings(tmp_path, resume="never"))
    assert enter(tmp_path, resume="never").find_checkpoint() == (None, [])
    assert enter(tmp_path, resume="never").find_checkpoint() == (None, [])  # its retry


def test_a_finished_run_without_its_report_is_not_over(tmp_path: Path) -> None:
    summary = {"status": "finished", "steps": 5, "top1": 50.0, "length": directory.length_asked(settings(tmp_path))}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert directory.over_already(settings(tmp_path), 128) is None
    (tmp_path / "report.html").write_text("")
    assert "is finished: 5 steps" in str(directory.over_already(settings(tmp_path), 128))


def test_failure_blocks_the_same_try_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    same, other = settings(tmp_path), settings(tmp_path, seed=2)
    for code in (2, 77):
        directory.record_failure(same, "it went wrong", code, {})
        with pytest.raises(ExitError, match="it went wrong") as caught:
            directory.over_already(same, 128)
        assert caught.value.code == code
        assert directory.over_already(other, 128) is None
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    assert directory.over_already(same, 128) is None
    monkeypatch.delenv("TRAINYARD_JOB")
    directory.record_failure(same, "wrong input", 2, {})
    assert directory.over_already(same, 128) is None  # a person at a shell has put it right


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        enter(tmp_path / "file" / "run")


def test_named_checkpoint_is_used_and_later_ones_left(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (5, 10, 15):
        checkpoint.save(folder, step, {"model": {}}, {})
    directory = enter(tmp_path, resume=str(folder / "step-00000010"))
    found, _ = directory.find_checkpoint()
    assert found is not None
    assert found.step == 10
    assert [path.name for path in checkpoint.steps(folder)] == ["step-00000005", "step-00000010"]
    with pytest.raises(UserError, match="no such folder"):
        enter(tmp_path, resume=str(tmp_path / "nowhere")).find_checkpoint()


def test_what_a_holder_writes_after_it_lost_the_directory_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    old = enter(tmp_path)
    checkpoint.save(folder, 4, {"model": {}}, {"holder": old.holder})
    new = enter(tmp_path)
    assert new.find_checkpoint()[0].step == 4  # type: ignore[union-attr]
    checkpoint.save(folder, 6, {"model": {}}, {"holder": new.holder})
    checkpoint.save(folder, 8, {"model": {}}, {"holder": old.holder})  # it slept between asking and writing
    found, reports = enter(tmp_path).find_checkpoint()
    assert found is not None
    assert found.step == 6
    assert "step-00000008 was written by a process that had lost this run directory before" in reports[0]
    assert (folder / "late-step-00000008").is_dir()
    assert [path.name for path in checkpoint.steps(folder)] == ["step-00000004", "step-00000006"]
    found, reports = enter(tmp_path).find_checkpoint()
    assert (found is not None and found.step, reports) == (6, [])


def test_storage_that_does_not_answer_is_no_sign_of_another_job(tmp_path: Path) -> None:
    holder, lease = enter(tmp_path), tmp_path / "lease.json"
    text = lease.read_text()
    lease.write_text("")  # as a network file system may show it for a moment
    assert holder.held()
    assert not holder.lost()
    lease.write_text(text)
    assert not holder.lost()
    lease.unlink()
    assert holder.lost()
