"""Two jobs on one run directory, each through its own mount of a network file system whose server stops, is killed and
restarted between them: the newer one's weights are those of an undisturbed run, and the older one changes nothing."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import events
from forked import Fleet, under_torchrun
from netfs import NetworkFolder, net

from tests import patience
from trainers.run import fence

__all__ = ["net"]
pytestmark = [pytest.mark.takes(40), pytest.mark.ranks(2)]

SETTINGS: dict[str, Any] = {
    "precision": "fp32", "model.batch_norm": "local", "model.name": "little_models:dropout", "epochs": None,
    "max_steps": 12, "checkpoint.every_steps": 4, "validate.batch": 300,
}  # fmt: skip
Job = tuple[list["subprocess.Popen[str]"], Path]


def begin(fleet: Fleet, run: Path, job: str, logs: Path, seconds: float = 0.0) -> Job:
    """Start a job with steps of so many seconds; touches nothing of the file system itself, whose server may not answer."""
    logs.mkdir(exist_ok=True)
    (logs / "base.yaml").write_text("{}\n")
    settings = fleet.trainer.settings(run, **SETTINGS)
    options = ["--config", str(logs / "base.yaml"), *(f"--set={key}={json.dumps(settings[key])}" for key in settings)]
    env = {**under_torchrun(1)[0], "TRAINYARD_JOB": job, "STEP_SECONDS": str(seconds)}
    return fleet.ranks("trainers.ddp", options, [env], logs / job)


@pytest.fixture(scope="module")
def undisturbed(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet.train(tmp_path_factory.mktemp("calm") / "run", 1, **SETTINGS)


@pytest.fixture(scope="module")
def other(net: NetworkFolder) -> Iterator[Path]:
    """Where the newer job has mounted what the older one has at `net.path`."""
    with net.mounted_again() as path:
        yield path


def take_over(fleet: Fleet, net: NetworkFolder, other: Path, name: str, logs: Path, seconds: float = 0.0) -> Job:
    """Start a newer job, for which the server stops before it has looked, and dies once it has taken the lease."""
    with net.stopped():
        newer = begin(fleet, other / name, "job-b", logs, seconds)
        time.sleep(2)
    taken = fence.folder_of(net.brick / name, 2)
    patience.wait("the newer job does not take the lease", taken.exists, lambda: patience.processor_seconds(os.getpid()))
    net.kill_server()
    time.sleep(1)
    net.start_server()
    return newer


def finished(fleet: Fleet, job: Job, code: int) -> str:
    codes, output = fleet.wait(job)
    assert codes == [code], output
    return output


def assert_same(run: Path, undisturbed: Path) -> None:
    one, two = (torch.load(path / "published" / "model.pth", weights_only=True) for path in (run, undisturbed))
    assert list(one) == list(two)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert [event["step"] for event in events(run, "train")] == list(range(1, SETTINGS["max_steps"] + 1))


def snapshot(run: Path) -> dict[str, tuple[int, int, int]]:
    stats = {str(path.relative_to(run)): path.stat() for path in run.rglob("*") if path.is_file()}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


@pytest.mark.parametrize("staged", [r"\.step-00000004", r"\.model\.pth"])
def test_a_rename_that_is_late_is_refused_and_its_job_writes_nothing(
    fleet: Fleet, net: NetworkFolder, other: Path, undisturbed: Path, tmp_path: Path, staged: str
) -> None:
    """The older job has asked whether the directory is still its own, and is suspended; its rename is on its way."""
    name = f"late-{len(staged)}/run"
    (net.brick / name).mkdir(parents=True)
    net.tell(hold={"ops": ["rename"], "path": f"/leases/0+1/{staged}"})
    older = begin(fleet, net.path / name, "job-a", tmp_path)
    assert net.held_call(lambda: older[0][0].poll() is not None), older[1]
    os.killpg(older[0][0].pid, signal.SIGSTOP)
    finished(fleet, take_over(fleet, net, other, name, tmp_path), 0)
    before = snapshot(net.brick / name)
    net.tell(release=True)
    os.killpg(older[0][0].pid, signal.SIGCONT)
    assert "taken over by job-b" in finished(fleet, older, 2)
    assert snapshot(net.brick / name) == before
    assert_same(net.brick / name, undisturbed)


def test_the_older_of_two_jobs_at_work_stops(
    fleet: Fleet, net: NetworkFolder, other: Path, undisturbed: Path, tmp_path: Path
) -> None:
    name, step = "both/run", 0.5
    (net.brick / name).mkdir(parents=True)
    older = begin(fleet, net.path / name, "job-a", tmp_path, step)
    saved = net.brick / name / "checkpoints" / "step-00000004"
    patience.wait("no checkpoint", saved.exists, lambda: patience.processor_seconds(older[0][0].pid))
    newer = take_over(fleet, net, other, name, tmp_path, step)
    assert "taken over by job-b" in finished(fleet, older, 2)
    finished(fleet, newer, 0)
    run = net.brick / name
    assert_same(run, undisturbed)
    lease = json.loads((run / "lease.json").read_text())
    manifests = {path.parent.name: json.loads(path.read_text()) for path in run.glob("checkpoints/step-*/manifest.json")}
    assert {manifests[name]["holder"] for name in manifests if name not in lease["trusted"]} == {lease["holder"]}
    assert not list(run.glob("checkpoints/[!s]*"))  # nothing came late and was set aside
