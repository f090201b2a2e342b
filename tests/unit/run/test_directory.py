"""The run directory's lease, restarts and failures, without any training."""

import contextlib
import errno
import itertools
import json
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faulty_storage import failing
from starting import count, length_of, over_already, run_directory

from tests import patience
from trainyard import config
from trainyard.config import Config
from trainyard.core.exits import ExitError, UserError
from trainyard.core.storage import storage
from trainyard.run import checkpoint, directory, fence, starts
from trainyard.run import lease_files as calls
from trainyard.run.directory import RunDirectory
from trainyard.run.lease import Lease
from trainyard.run.recorder import Recorder
from trainyard.run.resuming import recorded_settings
from trainyard.telemetry.clock import Clock
from trainyard.training.trainer import resume


def settings(path: Path, **layer: Any) -> Config:
    run = {"dir": str(path), **layer.pop("run", {})}
    return config.build({"recipe": "demo", "run": run}, layer)


def enter(path: Path, **layer: Any) -> RunDirectory:
    directory = run_directory(settings(path, **layer))
    directory.enter()
    return directory


def enter_with_one_heartbeat(path: Path, monkeypatch: pytest.MonkeyPatch, **layer: Any) -> RunDirectory:
    """Enter a directory; when this returns its heartbeat is written for the last time, so that nothing changes there.

    The thread that writes it may come late, and write after the lease was released.
    """
    monkeypatch.setattr(fence, "BEAT_SECONDS", 1e6)
    entered = enter(path, **layer)
    heartbeat = entered.staging / fence.HEARTBEAT
    patience.wait("no heartbeat", lambda: heartbeat.read_text().endswith(f" {entered.holder}\n"), patience.still)
    return entered


def test_the_page_lists_what_makes_another_run() -> None:
    page = (Path(__file__).parents[3] / "docs" / "interruptions.md").read_text()
    listed = page.partition("What may not, since it would be another")[2].partition(". The start")[0]
    own = settings(Path("run"))
    wanted = directory.identity(own.model, own.optimizer, own.seed, batch=8)
    assert [key for key in wanted if f"`{key}`" not in listed] == []


def test_the_newest_holder_has_the_lease(tmp_path: Path) -> None:
    first = enter(tmp_path)
    assert first.held()
    second = enter(tmp_path)
    assert not first.held()
    assert first.lost()
    assert second.held()
    first.release()
    assert not json.loads((tmp_path / "lease.json").read_text()).get("released")
    assert [path.name for path in (tmp_path / "leases").iterdir()] == ["00000002"]
    second.release()
    assert json.loads((tmp_path / "lease.json").read_text())["released"]


def test_a_lease_is_in_force_while_its_storage_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked before each line of a log: an error would end the thread that writes one, such as the heartbeats'."""
    first = enter(tmp_path)
    first.lease._ended.set()  # its own heartbeat says the same
    faults = failing(monkeypatch, "leases/00000001")
    faults.append(errno.ENOTCONN)
    assert first.lease.seems_held()
    assert not faults
    enter(tmp_path)
    assert not first.lease.seems_held()


def test_a_holder_shows_that_it_is_alive_whatever_its_main_thread_does(tmp_path: Path) -> None:
    enter(tmp_path)
    heartbeat = tmp_path / "leases" / "00000001" / "heartbeat"
    before = heartbeat.read_text()
    patience.wait("it shows no life", lambda: heartbeat.read_text() != before, patience.still)


def test_an_older_holder_learns_by_itself(tmp_path: Path) -> None:
    first = enter(tmp_path)
    enter(tmp_path)
    patience.wait("it does not learn", first.lost, patience.still)


def test_superseded_job_stays_out_while_the_newer_one_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    enter(tmp_path)
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    newer, seconds = enter_with_one_heartbeat(tmp_path, monkeypatch), [0.0]  # the test itself shows that it is alive
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    pause = time.sleep

    def sleep(wanted: float, *, alive: bool) -> None:
        if threading.current_thread() is not threading.main_thread():
            pause(wanted)
            return
        seconds[0] += wanted
        assert not alive or newer.held()

    monkeypatch.setattr(calls, "now", lambda: seconds[0])
    monkeypatch.setattr(calls, "sleep", lambda wanted: sleep(wanted, alive=True))
    with pytest.raises(UserError, match="taken over by b"):
        enter(tmp_path)
    assert 60 <= seconds[0] < 70
    monkeypatch.setattr(calls, "sleep", lambda wanted: sleep(wanted, alive=False))
    enter(tmp_path)
    assert 120 <= seconds[0] < 135
    assert not newer.held()
    monkeypatch.setenv("TRAINYARD_JOB", "c")
    enter(tmp_path).release()
    monkeypatch.setattr(fence, "STALE_SECONDS", 1e9)
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    enter(tmp_path)  # what was released needs no waiting


@pytest.mark.parametrize("resume", ["never", "a checkpoint"])
def test_a_superseded_job_leaves_the_newer_ones_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    """Its pod comes back after the newer job has ended: a lease that was released can be taken at once."""
    run, other = tmp_path / "run", checkpoint.save(tmp_path / "other", 1, {"model": {}}, {})
    resume = str(other) if resume != "never" else resume
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    older = enter(run, resume=resume)
    if found := older.find_checkpoint()[0]:
        older.note_begun(found)
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    newer = enter_with_one_heartbeat(run, monkeypatch)
    newer.note_begun(None)
    checkpoint.save(run / "checkpoints", 5, {"model": {}}, {"holder": newer.holder})
    newer.release()
    before = files(run)
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    for restarts in ("0", "1"):  # in a new pod, and in place
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        with pytest.raises(UserError, match=r"taken over by b, a newer job; .* Set resume to auto to continue that"):
            enter(run, resume=resume)
        assert files(run) == before
    assert begin(run, "auto").step == 5
    monkeypatch.setenv("TRAINYARD_JOB", "c")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    found, _ = enter(run, resume=resume).find_checkpoint()
    assert (found and found.path) == (other if resume == str(other) else None), "a newer job begins as it is told"


def test_restarts_without_progress_are_bounded(tmp_path: Path) -> None:
    for _ in range(4):
        count(settings(tmp_path))
    for _ in range(2):
        with pytest.raises(ExitError, match=r"3 restarts of .* without a new checkpoint") as caught:
            count(settings(tmp_path))
        assert caught.value.code == 1
    checkpoint.save(tmp_path / "checkpoints", 5, {"model": {}}, {})
    count(settings(tmp_path))
    for _ in range(5):
        count(settings(tmp_path))
        enter(tmp_path).release(stopped=True)  # stopped from outside: no fault of the run
    count(settings(tmp_path, seed=9))
    assert json.loads((tmp_path / "restarts" / "none.json").read_text())["count"] == 0


def test_an_older_job_does_not_touch_the_newer_ones_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in ("new", "old", "new", "old", "new", "new"):
        monkeypatch.setenv("TRAINYARD_JOB", job)
        count(settings(tmp_path))
    monkeypatch.setenv("TRAINYARD_JOB", "new")
    with pytest.raises(ExitError, match="3 restarts"):
        count(settings(tmp_path))


def test_where_a_checkpoint_was_step_0_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    folder = tmp_path / "checkpoints"
    count(settings(tmp_path))
    assert enter(tmp_path).find_checkpoint() == (None, [])
    checkpoint.save(folder, 5, {"model": {}}, {})
    (folder / "step-00000005" / "manifest.json").unlink()
    for _ in range(2):  # also once it is set aside
        with pytest.raises(
            UserError, match=r"this run had one \(damaged-step-00000005 cannot be used\).*resume to never"
        ):
            enter(tmp_path).find_checkpoint()
    (folder / "damaged-step-00000005").rename(folder / "step-00000005")
    count(settings(tmp_path))
    shutil.rmtree(folder)  # a snapshot of the claim was restored in part, or someone made room
    with pytest.raises(UserError, match=r"this run had one \(step-00000005 is gone\)"):
        enter(tmp_path).find_checkpoint()
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    count(settings(tmp_path, resume="never"))
    assert enter(tmp_path, resume="never").find_checkpoint() == (None, [])
    assert enter(tmp_path, resume="never").find_checkpoint() == (None, [])  # its retry


RECORDS = {
    "a checkpoint in the metrics": ("metrics.jsonl", [{"event": "checkpoint", "step": step} for step in (4, 8)]),
    "a resume in the metrics": ("metrics.jsonl", [{"event": "resume", "step": 8}]),
    "a stop in the metrics": ("metrics.jsonl", [{"event": "end", "step": 8, "status": "stopped"}]),
    "the summary": ("summary.json", [{"status": "finished", "steps": 8}]),
}


@pytest.mark.parametrize("record", RECORDS)
def test_any_record_of_a_checkpoint_refuses_step_0(tmp_path: Path, record: str) -> None:
    """As of a run of an older version, or on a mount that shows the run without its checkpoints."""
    name, lines = RECORDS[record]
    content = "".join(json.dumps({"epoch": 1, "time": 1.5, **line}) + "\n" for line in lines)
    tmp_path.joinpath(name).write_text(content)
    for _ in range(2):  # it is not forgotten with the first refusal
        count(settings(tmp_path))
        with pytest.raises(UserError, match=r"this run had one \(step-00000008 is gone\).*resume to never"):
            run_directory(settings(tmp_path)).start({})
        assert tmp_path.joinpath(name).read_text() == content
    assert enter(tmp_path, resume="never").find_checkpoint() == (None, [])


def test_a_start_is_refused_for_what_it_has_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = starts.read_events
    looks: list[Path] = []
    monkeypatch.setattr(starts, "read_events", lambda path: looks.append(path) or read(path))
    (tmp_path / "metrics.jsonl").write_text('{"event": "checkpoint", "step": 8, "epoch": 1, "time": 1.5}\n')
    with pytest.raises(UserError, match=r"this run had one \(step-00000008 is gone\)"):
        enter(tmp_path).find_checkpoint()
    assert looks == [tmp_path / "metrics.jsonl"]


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    steps = {"start": 0, "train": 3, "end": 3}
    lines = [{"event": kind, "step": step, "status": "failed"} for kind, step in steps.items()]
    tmp_path.joinpath("metrics.jsonl").write_text(
        "".join(json.dumps({"epoch": 1, "time": 1.5, **line}) + "\n" for line in lines)
    )
    tmp_path.joinpath("summary.json").write_text(json.dumps({"status": "failed", "steps": 3}))
    count(settings(tmp_path))
    assert run_directory(settings(tmp_path)).start({}) is None
    assert not tmp_path.joinpath("summary.json").exists()


def test_each_start_remembers_the_checkpoints_that_others_saw(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "checkpoints", 8, {"model": {}}, {})
    count(settings(tmp_path))
    shutil.rmtree(tmp_path / "checkpoints")
    for _ in range(3):
        count(settings(tmp_path))
        with pytest.raises(UserError, match=r"step-00000008 is gone"):
            enter(tmp_path).find_checkpoint()
    for left in set(tmp_path.iterdir()) - {tmp_path / "restarts"}:  # and what else there was
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    count(settings(tmp_path, resume="never"))
    assert enter(tmp_path, resume="never").find_checkpoint() == (None, [])


def test_a_finished_run_without_its_report_is_not_over(tmp_path: Path) -> None:
    summary = {"status": "finished", "steps": 5, "top1": 50.0, "length": length_of(settings(tmp_path))}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert over_already(settings(tmp_path), 128) is None
    (tmp_path / "report.html").write_text("")
    assert "is finished: 5 steps" in str(over_already(settings(tmp_path), 128))


def test_storage_that_fails_while_a_finished_run_is_looked_at_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = length_of(settings(tmp_path))
    storage.write_json(tmp_path / "summary.json", {"status": "finished", "steps": 3, "top1": 50.0, "length": length})
    (tmp_path / "report.html").touch()
    faults = failing(monkeypatch, "report.html")
    faults.append(errno.EIO)
    assert over_already(settings(tmp_path), 8) is not None
    assert not faults
    monkeypatch.setenv("TRAINYARD_STORAGE_SECONDS", "0")
    faults += [errno.ESTALE] * 9
    with pytest.raises(ExitError, match=r"report.html: .* the storage does not answer"):
        over_already(settings(tmp_path), 8)


def test_failure_blocks_the_same_try_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    same, other = settings(tmp_path), settings(tmp_path, seed=2)
    for code in (2, 77):
        directory.record_failure(tmp_path, config.fingerprint(same), "it went wrong", code, {})
        with pytest.raises(ExitError, match="it went wrong") as caught:
            over_already(same, 128)
        assert caught.value.code == code
        assert over_already(other, 128) is None
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    assert over_already(same, 128) is None
    monkeypatch.delenv("TRAINYARD_JOB")
    directory.record_failure(tmp_path, config.fingerprint(same), "wrong input", 2, {})
    assert over_already(same, 128) is None  # a person at a shell has put it right


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        enter(tmp_path / "file" / "run")


def test_named_checkpoint_is_used_and_later_ones_left(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (5, 10, 15):
        checkpoint.save(folder, step, {"model": {}}, {})
    for left in ("left-step-00000015", "left-step-00000015x"):  # a second time, too
        directory = enter(tmp_path, resume=str(folder / "step-00000010"))
        found, _ = directory.find_checkpoint()
        assert found is not None
        assert found.step == 10
        directory.note_begun(found)
        assert [path.name for path in checkpoint.steps(folder)] == ["step-00000005", "step-00000010"]
        assert (folder / left / "manifest.json").exists()
        checkpoint.save(folder, 15, {"model": {}}, {})
        (tmp_path / "resumed.json").unlink()
    with pytest.raises(UserError, match="no such folder"):
        enter(tmp_path, resume=str(tmp_path / "nowhere")).find_checkpoint()


def test_whether_a_start_is_a_retry_is_decided_with_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pods of a job may start at once; the slower one does not move aside what the other has trained."""
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    take = Lease.take

    def take_later(this: Lease, checkpoints: Path) -> list[str]:
        monkeypatch.setattr(Lease, "take", take)
        enter(tmp_path, resume="never")
        checkpoint.save(tmp_path / "checkpoints", 5, {"model": {}}, {})
        return take(this, checkpoints)

    monkeypatch.setattr(Lease, "take", take_later)
    found, _ = enter(tmp_path, resume="never").find_checkpoint()
    assert found is not None
    assert found.step == 5


def begin(path: Path, resume: str) -> checkpoint.Found:
    """Start a run with `resume`, up to its first step; return the checkpoint that it resumes from."""
    count(settings(path, resume=resume))
    entered = enter(path, resume=resume)
    found, _ = entered.find_checkpoint()
    assert found is not None
    entered.note_begun(found)
    return found


def test_a_named_checkpoint_is_begun_from_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the run has begun there, each job with the same values resumes from the run's own later checkpoints."""
    run, other = tmp_path / "run", checkpoint.save(tmp_path / "other", 10, {"model": {}}, {})
    for step in (5, 20):
        checkpoint.save(run / "checkpoints", step, {"model": {}}, {})
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    count(settings(run, resume=str(other)))
    found, reports = enter(run, resume=str(other)).find_checkpoint()  # and is refused, or ends before its first step
    assert found is not None
    assert (found.path, reports) == (other, [])
    assert [path.name for path in checkpoint.steps(run / "checkpoints")] == ["step-00000005", "step-00000020"]
    for _ in range(2):  # a restart before its first checkpoint begins there again: step 5 is of what was before
        assert begin(run, str(other)).path == other
    printed = capsys.readouterr().out
    assert printed == f"resume = '{other}': the later step-00000020 is set aside as left-step-00000020\n"
    checkpoint.save(run / "checkpoints", 15, {"model": {}}, {})
    for job in ("a", "b"):
        monkeypatch.setenv("TRAINYARD_JOB", job)
        assert begin(run, str(other)).step == 15
        said = enter(run, resume=str(other)).find_checkpoint()[1]
        assert f"resumes from its own step-00000015; to begin from it again, remove {run / 'resumed.json'}" in said[0]
    assert begin(run, "auto").step == 15
    assert begin(run, str(other)).path == other, "after another `resume` it is named anew"
    checkpoint.save(run / "checkpoints", 25, {"model": {}}, {})
    shutil.rmtree(other)
    assert begin(run, str(other)).step == 25, "from then on it need not be there"


def test_a_named_checkpoint_of_another_run_is_refused_and_sets_nothing_aside(tmp_path: Path) -> None:
    run = tmp_path / "run"
    other = checkpoint.save(tmp_path / "other", 10, {"model": {}}, {"identity": {"seed": 2}})
    checkpoint.save(run / "checkpoints", 20, {"model": {}}, {})
    with pytest.raises(UserError, match=f"seed = 1, but {other} holds a run with 2"):
        run_directory(settings(run, resume=str(other))).start({"seed": 1})
    assert begin(run, "auto").step == 20


@pytest.mark.parametrize("record", ["a start saw it", "metrics"])
def test_a_run_that_lost_its_checkpoints_does_not_begin_at_the_named_one_again(tmp_path: Path, record: str) -> None:
    run, other = tmp_path / "run", checkpoint.save(tmp_path / "other", 10, {"model": {}}, {})
    checkpoint.save(run / "checkpoints", 20, {"model": {}}, {})
    count(settings(run))
    for _ in range(2):
        assert begin(run, str(other)).path == other, "that there was a later one before is known, and meant"
    if record == "metrics":
        (run / "metrics.jsonl").write_text('{"event": "checkpoint", "step": 15, "epoch": 1, "time": 1.5}\n')
    else:
        checkpoint.save(run / "checkpoints", 15, {"model": {}}, {})
        assert begin(run, str(other)).step == 15
    shutil.rmtree(run / "checkpoints")
    for _ in range(2):
        count(settings(run, resume=str(other)))
        with pytest.raises(UserError, match=r"\(step-00000015 is gone\); .* again from resume = .*set resume to never"):
            enter(run, resume=str(other)).find_checkpoint()


def test_the_settings_that_a_start_resumes_with_are_known_before_it_enters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    run = settings(tmp_path / "run").run
    folder = Path(run.dir) / "checkpoints"
    other = checkpoint.save(tmp_path / "other", 10, {"model": {}}, {"config": {"seed": 10}})
    assert recorded_settings(run, "auto") == {}
    for step in (5, 15, 20):
        checkpoint.save(folder, step, {"model": {}}, {"config": {"seed": step}})
    (folder / "step-00000020" / "manifest.json").write_text("{")
    found = {resume: recorded_settings(run, resume).get("seed") for resume in ("auto", "never", str(other))}
    assert found == {"auto": 15, "never": None, str(other): 10}
    begin(tmp_path / "run", str(other))
    assert recorded_settings(run, str(other)) == {"seed": 10}
    checkpoint.save(folder, 12, {"model": {}}, {"config": {"seed": 12}})
    assert recorded_settings(run, str(other)) == {"seed": 12}
    assert recorded_settings(run, "never") == {"seed": 12}, "a retry of the same job resumes"


def test_what_a_holder_writes_after_it_lost_the_directory_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    old = enter(tmp_path)
    checkpoint.save(folder, 4, {"model": {}}, {"holder": old.holder})
    new = enter(tmp_path)
    assert new.find_checkpoint()[0].step == 4  # type: ignore[union-attr]
    checkpoint.save(folder, 6, {"model": {}}, {"holder": new.holder})
    checkpoint.save(folder, 8, {"model": {}}, {"holder": old.holder})  # where storage does not fence it off
    found, reports = enter(tmp_path).find_checkpoint()
    assert found is not None
    assert found.step == 6
    assert "step-00000008 was written by a process that had lost this run directory before" in reports[0]
    assert (folder / "late-step-00000008").is_dir()
    assert [path.name for path in checkpoint.steps(folder)] == ["step-00000004", "step-00000006"]
    found, reports = enter(tmp_path).find_checkpoint()
    assert (found is not None and found.step, reports) == (6, [])


def test_a_holder_whose_look_fails_learns_from_its_folder_that_it_was_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = enter(tmp_path)

    def fail(*_: object) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fence, "beat", fail)  # before the other comes: the holder looks by itself, too
    second = enter(tmp_path)
    assert first.held()
    with pytest.raises(UserError, match="taken over by"), first.fenced():
        (first.staging / "summary.json").write_text("{}")
    with pytest.raises(FileNotFoundError), second.fenced():
        (second.staging / "nowhere" / "summary.json").write_text("{}")


def test_storage_that_does_not_answer_is_no_sign_of_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = enter_with_one_heartbeat(tmp_path, monkeypatch)  # one in between would find no folder at all
    folder, away = tmp_path / "leases", tmp_path / "away"
    folder.rename(away)
    folder.symlink_to(folder)  # every access fails with ELOOP
    assert holder.held()
    assert not holder.lost()
    folder.unlink()
    away.rename(folder)
    assert holder.held()
    shutil.rmtree(folder / "00000001")
    assert not holder.held()
    assert holder.lost()


class Older:
    """The lease of version 0.1.0: one file, without numbers."""

    def __init__(self, run: Path, holder: str, job: str, **further: Any) -> None:
        self.path, self.holder = run / "lease.json", holder
        self.path.write_text(json.dumps({"holder": holder, "job": job, "superseded": [], **further}))

    def lost(self) -> bool:
        return bool(json.loads(self.path.read_text()).get("holder") != self.holder)


def test_a_run_directory_of_0_1_0_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, 4, {"model": {}}, {"holder": "before"})
    checkpoint.save(folder, 6, {"model": {}}, {"holder": "old"})
    checkpoint.save(folder, 8, {"model": {}}, {"holder": "late"})
    old = Older(tmp_path, "old", "job-a", trusted=["step-00000004"])
    (folder / ".step-00000010.12345678.tmp").mkdir()  # what it was writing
    monkeypatch.setenv("TRAINYARD_JOB", "job-b")
    new = enter(tmp_path)
    assert [path.name for path in checkpoint.steps(folder)] == ["step-00000004", "step-00000006"]
    assert not (folder / ".step-00000010.12345678.tmp").exists()
    assert old.lost(), "a process of 0.1.0 still runs, and must notice"
    assert json.loads(old.path.read_text())["superseded"] == ["job-a"]
    assert new.held()
    Older(tmp_path, "back", "job-a")  # an image of 0.1.0 is rolled back to
    assert not new.held()
    monkeypatch.setenv("TRAINYARD_JOB", "job-c")
    again = enter(tmp_path)
    assert again.lease.number == 2
    assert json.loads(old.path.read_text())["superseded"] == ["job-a"]


def as_release(monkeypatch: pytest.MonkeyPatch, namespace: str, release: str) -> None:
    monkeypatch.setenv("TRAINYARD_NAMESPACE", namespace)
    monkeypatch.setenv("TRAINYARD_RELEASE", release)


def test_a_run_directory_belongs_to_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path).release()  # by a version without owners, or at a shell
    as_release(monkeypatch, "team-a", "run")
    first = enter(tmp_path)
    for namespace, release in (("team-b", "run"), ("team-a", "other")):
        as_release(monkeypatch, namespace, release)
        for attempt in (lambda: enter(tmp_path), lambda: over_already(settings(tmp_path), 128)):
            with pytest.raises(
                UserError, match=rf"belongs to release team-a/run .*this is {namespace}/{release}.*adopt"
            ):
                attempt()
    assert first.held()
    monkeypatch.delenv("TRAINYARD_RELEASE")
    second = enter(tmp_path)  # somebody looks after it at a shell, and it stays whose it was
    as_release(monkeypatch, "team-a", "run")
    over_already(settings(tmp_path), 128)
    as_release(monkeypatch, "team-b", "run")
    assert over_already(settings(tmp_path, run={"adopt": True}), 128) is None
    enter(tmp_path, run={"adopt": True})
    assert not second.held()
    enter(tmp_path)
    as_release(monkeypatch, "team-a", "run")
    with pytest.raises(UserError, match="belongs to release team-b/run"):
        enter(tmp_path)


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


TORN = {
    "no record": None, "an empty one": b"", "half of one": b'{"number": 9, "hol', "another encoding": b"\xff\xfe",
    "no object": b"7", "a list of numbers": b'{"number": 9, "holder": "x", "superseded": [1]}',
    **{f"{key} null": json.dumps({"number": 9, "holder": "x", key: None}).encode() for key in fence.KINDS},
    "a huge number": b'{"number": 1e400, "holder": "x"}', "a number for a list": b'{"number": 9, "writers": 5}',
}  # fmt: skip


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the test's own thread, which do not wait."""
    slept: list[float] = []
    pause, test = time.sleep, threading.current_thread()
    monkeypatch.setattr(
        calls,
        "sleep",
        lambda seconds: slept.append(seconds) if threading.current_thread() is test else pause(seconds),
    )
    return slept


@pytest.mark.parametrize("torn", TORN)
def test_a_lease_without_a_record_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float], torn: str
) -> None:
    """Made by hand, or what storage has left of one; the directory stays its owner's, and every checkpoint counts."""
    as_release(monkeypatch, "team-a", "run")
    enter(tmp_path).release()
    folder = tmp_path / "leases" / "00000009"
    folder.mkdir()
    if (content := TORN[torn]) is not None:
        (folder / "lease.json").write_bytes(content)
    checkpoint.save(tmp_path / "checkpoints", 5, {"model": {}}, {"holder": "the lost one"})
    as_release(monkeypatch, "team-b", "run")
    with pytest.raises(UserError, match="belongs to release team-a/run"):
        over_already(settings(tmp_path), 128)
    as_release(monkeypatch, "team-a", "run")
    assert over_already(settings(tmp_path), 128) is None
    new = enter(tmp_path)
    found, reports = new.find_checkpoint()
    assert (new.lease.number, found is not None and found.step) == (10, 5)
    assert reports == [f"{folder} had no lease.json that can be read; its holder can write nothing more here"]
    assert [path.name for path in (tmp_path / "leases").iterdir()] == ["00000010"]
    assert sum(pauses) < 10


def test_a_torn_lease_whose_copy_is_whole_is_as_good_as_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    enter(tmp_path, resume="never")
    (tmp_path / "leases" / "00000001" / "lease.json").write_bytes(b"")
    assert directory.is_retry(tmp_path)
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    assert not directory.is_retry(tmp_path)
    again = enter(tmp_path)
    assert again.find_checkpoint() == (None, [])
    assert json.loads((tmp_path / "lease.json").read_text())["superseded"] == ["a"]
    assert sum(pauses) < 10


def test_what_is_no_lease_among_leases_and_runs_put_aside(tmp_path: Path, pauses: list[float]) -> None:
    enter(tmp_path).release()
    for name in ("\xb2", "7", "notes", "x" * 200, "00000009x"):
        (tmp_path / "leases" / name).mkdir()
    for name in ("00000005", "\u0663", "notes.txt"):
        (tmp_path / "leases" / name).write_text("x")
    (tmp_path / "previous" / "\xb2").mkdir(parents=True)
    assert enter(tmp_path, resume="never").lease.number == 6
    assert [path.name for path in (tmp_path / "leases").iterdir()] == ["00000006"]
    assert sorted(path.name for path in (tmp_path / "previous").iterdir()) == ["001", "\xb2"]
    assert sum(pauses) < 10


def test_leases_that_may_not_be_read_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_release(monkeypatch, "team-a", "run")
    enter(tmp_path).release()
    failing(monkeypatch, "lease.json").extend([errno.EACCES] * 100)
    with pytest.raises(UserError, match=r"leases cannot be read \(Permission denied\)"):
        over_already(settings(tmp_path), 128)


def test_a_stranger_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_release(monkeypatch, "team-a", "run")
    enter_with_one_heartbeat(tmp_path, monkeypatch).release()
    before = files(tmp_path), sorted(tmp_path.rglob("*"))
    as_release(monkeypatch, "team-b", "run")
    with pytest.raises(UserError):
        over_already(settings(tmp_path), 128)
    with pytest.raises(UserError):
        enter(tmp_path)
    assert (files(tmp_path), sorted(tmp_path.rglob("*"))) == before


def test_what_a_holder_had_begun_to_write_goes_with_its_lease(tmp_path: Path) -> None:
    old = enter(tmp_path)
    staged = old.staging / ".step-00000004.0.tmp"
    staged.mkdir()
    (staged / "manifest.json").write_text("{}")
    enter(tmp_path)
    for publish in (
        lambda: staged.rename(tmp_path / "checkpoints" / "step-00000004"),
        lambda: storage.write_json(tmp_path / "summary.json", {}, via=old.staging),
    ):
        with pytest.raises(FileNotFoundError):
            publish()
        with pytest.raises(UserError, match="taken over by"), old.fenced():
            publish()
    with pytest.raises(checkpoint.NotOursError):
        checkpoint.write(tmp_path / "checkpoints", 4, {}, {}, ours=old.held, staging=old.staging)


def test_never_moves_the_old_run_aside_and_keeps_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    previous = tmp_path / "previous"

    def again(job: str, **layer: Any) -> list[str]:
        monkeypatch.setenv("TRAINYARD_JOB", job)
        enter(tmp_path, resume="never", run={"keep_aside": 3}, **layer)
        (tmp_path / "mark").write_text(job)
        return sorted(path.name for path in previous.glob("*"))

    assert again("a") == []
    assert again("b") == ["001"]
    assert again("b") == ["001"], "a retry of the same job continues"
    again("c")
    shutil.rmtree(previous / "001")
    assert again("d") == ["002", "003"], "a number is never used again"
    assert again("e") == ["002", "003", "004"]
    assert again("f") == ["003", "004", "005"]
    assert (previous / "005" / "mark").read_text() == "e"


def test_a_move_that_was_cut_short_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    enter(tmp_path)
    for step in (2, 4):
        checkpoint.save(tmp_path / "checkpoints", step, {"model": {}}, {})
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    rename, moved = Path.rename, []

    def dying(path: Path, target: Path) -> Path:
        if Path(target).parent.name == ".moving":
            if moved:
                raise KeyboardInterrupt
            moved.append(path.name)
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        with pytest.raises(KeyboardInterrupt):
            enter(tmp_path, resume="never")
    assert moved == ["checkpoints"], "without checkpoints nobody continues what is half moved"
    entered = enter(tmp_path, resume="never")
    assert entered.find_checkpoint()[0] is None
    assert [path.name for path in (tmp_path / "previous").iterdir()] == ["001"]
    assert {"checkpoints", "config.yaml"} <= {path.name for path in (tmp_path / "previous" / "001").iterdir()}


def fail_once(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException, done: bool) -> list[str]:
    """Make the rename of this number fail, `done` or not; returns a list that gets the name of what it was."""
    rename, calls = Path.rename, itertools.count(1)
    failed: list[str] = []

    def failing(path: Path, target: Path) -> Path:
        fails = next(calls) == at
        renamed = rename(path, target) if done or not fails else target
        if fails:
            failed.append(path.name)
            raise error
        return renamed

    monkeypatch.setattr(Path, "rename", failing)
    return failed


FAILS, REPEATED = OSError(errno.ENOTCONN, "lost"), FileNotFoundError(errno.ENOENT, "its answer was lost")


@pytest.mark.parametrize(
    ("error", "done"),
    [(FAILS, False), (FAILS, True), (KeyboardInterrupt(), False), (KeyboardInterrupt(), True), (REPEATED, True)],
    ids=["fails-before", "fails-after", "dies-before", "dies-after", "repeated"],
)
def test_any_rename_may_fail_while_a_directory_is_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, done: bool
) -> None:
    """Before the storage has carried it out, or after; a storage that fails is asked again, a dead job is restarted."""
    for number in itertools.count(1):
        root = tmp_path / str(number)
        monkeypatch.setenv("TRAINYARD_JOB", "a")
        enter(root)
        checkpoint.save(root / "checkpoints", 2, {"model": {}}, {})
        monkeypatch.setenv("TRAINYARD_JOB", "b")
        count(settings(root, resume="never"))
        with monkeypatch.context() as patch:
            failed = fail_once(patch, number, error, done)
            try:
                entered = enter(root, resume="never")
            except KeyboardInterrupt:
                entered = enter(root, resume="never")
        assert entered.find_checkpoint()[0] is None
        assert not checkpoint.steps(root / "checkpoints")
        assert checkpoint.steps(root / "previous" / "001" / "checkpoints"), failed
        assert [path.name for path in (root / "previous").iterdir()] == ["001"], failed
        if not failed:
            break
    assert number > 5


@pytest.mark.parametrize("done", [False, True], ids=["dies-before", "dies-after"])
@pytest.mark.parametrize("kind", ["damaged", "left", "late"])
def test_a_checkpoint_that_is_being_set_aside_is_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, done: bool
) -> None:
    """Whichever rename the start dies at, the next one finishes what was begun."""
    for number in itertools.count(1):
        root = tmp_path / str(number)
        folder, name, holder = root / "checkpoints", "step-00000004", ""
        named = checkpoint.save(root / "other", 1, {"model": {}}, {})
        if kind == "late":
            holder = enter(root).holder
            enter(root)
        checkpoint.save(folder, 4, {"model": {}}, {"holder": holder})
        if kind == "damaged":
            (folder / name / "manifest.json").unlink()
            checkpoint.save(folder, 2, {"model": {}}, {})
        with monkeypatch.context() as patch:
            failed = fail_once(patch, number, KeyboardInterrupt(), done)
            with contextlib.suppress(KeyboardInterrupt):
                begin(root, str(named) if kind != "damaged" else "auto")
        if failed:
            begin(root, str(named) if kind != "damaged" else "auto")
        assert [path.name for path in folder.iterdir() if name in path.name] == [f"{kind}-{name}"], failed
        assert (folder / f"{kind}-{name}" / "model.safetensors").exists()
        if not failed:
            break
    assert number > 5


def test_a_checkpoint_that_was_being_set_aside_outlives_the_others(tmp_path: Path) -> None:
    """Somebody has made room in a run directory whose start was killed; the name that it was to have is taken."""
    folder, leaving = tmp_path / "checkpoints", enter(tmp_path).staging / fence.LEAVING
    for number in (1, 2):
        checkpoint.save(folder, 4, {"model": {}}, {})
        leaving.mkdir()
        (folder / "step-00000004").rename(leaving / "left-step-00000004")
        if number == 1:
            shutil.rmtree(folder)
        leaving = enter(tmp_path).staging / fence.LEAVING
    assert sorted(path.name for path in folder.iterdir()) == ["left-step-00000004", "left-step-00000004x"]


class AsTheyCome:
    """The storage, where one more checkpoint comes just before the folder of those that are set aside is removed."""

    def __init__(self, late: str) -> None:
        self._late = [late]

    def __getattr__(self, name: str) -> Any:
        return getattr(calls, name)

    def remove_folder(self, folder: Path) -> None:
        if folder.name == fence.LEAVING and self._late:
            (folder / self._late.pop()).mkdir()
        calls.remove_folder(folder)


def test_what_comes_to_be_set_aside_while_another_job_tidies_up(tmp_path: Path) -> None:
    """From a holder that was suspended amid it; and other newer jobs look at the same folder."""
    (tmp_path / "checkpoints").mkdir()
    leaving = enter(tmp_path).staging / fence.LEAVING
    for name in ("left-step-00000004", f".look-{calls.unique()}"):
        (leaving / name).mkdir(parents=True)
    as_they_come: Any = AsTheyCome("left-step-00000006")
    Lease(tmp_path, on=as_they_come).take(tmp_path / "checkpoints")
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["left-step-00000004", "left-step-00000006"]


def test_who_has_lost_the_directory_moves_nothing_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended right after it has taken the lease, or has seen a damaged checkpoint, while a newer one works here."""
    folder, move = tmp_path / "checkpoints", RunDirectory._move_aside

    def newer_first(this: RunDirectory, always: bool) -> None:
        if always:
            checkpoint.save(folder, 2, {"model": {}}, {"holder": enter(tmp_path).holder})
        move(this, always)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "_move_aside", newer_first)
        with pytest.raises(UserError, match="taken over by"):
            enter(tmp_path, resume="never")
    assert [path.name for path in folder.iterdir()] == ["step-00000002"]

    older = enter(tmp_path)
    enter(tmp_path)
    (folder / "step-00000002" / "manifest.json").unlink()
    with pytest.raises(UserError, match="taken over by"):
        older.find_checkpoint()
    assert [path.name for path in folder.iterdir()] == ["step-00000002"]


def test_who_has_lost_the_directory_rewinds_no_metrics(tmp_path: Path) -> None:
    """Between finding its checkpoint and its first step."""
    older = enter(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"event": "train", "step": 3}\n')
    enter(tmp_path)
    recorder = object.__new__(Recorder)  # a whole one needs a model and a dataset
    recorder._strategy, recorder._directory = SimpleNamespace(is_rank0=True), older  # type: ignore[assignment]
    recorder._clock = Clock(0.0)
    with pytest.raises(UserError, match="taken over by"):
        recorder.begin(0, 0, {})
    assert (tmp_path / "metrics.jsonl").read_text()


def test_who_has_lost_the_directory_and_its_checkpoint_says_so(tmp_path: Path) -> None:
    """The newer job has pruned what the older one has found and is about to load."""
    checkpoint.save(tmp_path / "checkpoints", 2, {"model": {}}, {})
    older = enter(tmp_path)
    found, _ = older.find_checkpoint()
    enter(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000002")
    records = SimpleNamespace(found=found, directory=older)
    trainer = SimpleNamespace(records=records, strategy=SimpleNamespace(is_rank0=True), learner=None, progress=None)
    with pytest.raises(UserError, match="taken over by"):
        resume(trainer)  # type: ignore[arg-type]


def test_what_was_set_aside_is_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for number in range(4):
        for kind in ("damaged", "late", "left"):
            (folder / f"{kind}-step-{number:08d}").mkdir(parents=True)
            os.utime(folder / f"{kind}-step-{number:08d}", (number, number))
    checkpoint.save(folder, 5, {"model": {}}, {})
    enter(tmp_path, run={"keep_aside": 2})
    kept = [f"{kind}-step-0000000{number}" for kind in ("damaged", "late", "left") for number in (2, 3)]
    assert sorted(path.name for path in folder.iterdir()) == [*kept, "step-00000005"]


def test_a_job_that_lost_records_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "b")
    newer = enter(tmp_path)
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    directory.record_failure(tmp_path, config.fingerprint(settings(tmp_path)), "it went wrong", 77, {})
    assert not (tmp_path / "failed.json").exists()
    newer.release()
    directory.record_failure(tmp_path, config.fingerprint(settings(tmp_path)), "it went wrong", 77, {})
    assert (tmp_path / "failed.json").exists()
