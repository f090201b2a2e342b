"""Two jobs on one run directory, each through its own mount of a network file system whose server stops, is killed and
restarted between them: the newer one's weights are those of an undisturbed run, and the older one changes nothing."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import events, hold
from fleet import Fleet
from netfs import NetworkFolder, net
from published import assert_same_weights

from tests import patience
from trainyard.run import fence
from trainyard.telemetry.mounts import ON_A_FILE, ON_A_PATH

__all__ = ["net"]
pytestmark = [pytest.mark.root, pytest.mark.takes(40), pytest.mark.ranks(2)]

SETTINGS: dict[str, Any] = {
    "precision": "fp32", "model.batch_norm": "local", "model.name": "little_models:dropout", "epochs": None,
    "max_steps": 12, "checkpoint.every_steps": 4, "validate.batch": 300,
}  # fmt: skip
Job = tuple[list["subprocess.Popen[str]"], Path]


@dataclass
class Contest:
    """A run directory, as the server has it (`run`) and as the older and the newer job see it."""

    fleet: Fleet
    net: NetworkFolder
    run: Path
    older: Path
    newer: Path
    logs: Path

    def begin(self, run: Path, job: str, seconds: float, **more: str) -> Job:
        """Start a job with steps of so many seconds; looks at no mount, since the server may not answer."""
        env = {"TRAINYARD_JOB": job, "STEP_SECONDS": str(seconds), **more}
        return self.fleet.start(run, 1, env=env, logs=self.logs / job, **SETTINGS)

    def take_over(self, seconds: float = 0.0) -> Job:
        """Start the newer job: the server stops before it has looked, and dies once it has taken the lease."""
        with self.net.stopped():
            job = self.begin(self.newer, "job-b", seconds)
            pid = job[0][0].pid
            patience.wait("it has not looked", waits_for_a_file(pid), lambda: patience.processor_seconds(pid))
        taken = fence.folder_of(self.run, 2)
        patience.wait("the lease is not taken", taken.exists, lambda: patience.processor_seconds(pid))
        self.net.kill_server()
        time.sleep(1)
        self.net.start_server()
        return job

    def finish(self, job: Job, code: int) -> str:
        codes, output = self.fleet.wait(job)
        assert codes == [code], output
        return output

    def snapshot(self) -> dict[str, tuple[int, int, int]]:
        """What tells that a file was changed; the older job's count of its own starts is no file of the newer one's.

        The older job may be suspended as it writes this count: so a temporary file of it is left out too.
        """
        own = self.run / "restarts"
        files = (path for path in self.run.rglob("*") if path.is_file())
        others = (path for path in files if path.parent != own or not path.name.lstrip(".").startswith("job-a.json"))
        stats = {str(path.relative_to(self.run)): path.stat() for path in others}
        return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def waits_for_a_file(pid: int) -> Callable[[], bool]:
    """Make a look, which finds a process in the same call about a file as the two looks before."""
    machine, seen = os.uname().machine, [""] * 3
    calls = ON_A_FILE[machine] | ON_A_PATH[machine]

    def look() -> bool:
        seen[:] = [*seen[1:], Path(f"/proc/{pid}/syscall").read_text()]
        number = seen[0].split(maxsplit=1)[:1]
        return len(set(seen)) == 1 and bool(number) and number[0].isdigit() and int(number[0]) in calls

    return look


@pytest.fixture(scope="module")
def mounts(net: NetworkFolder) -> Iterator[tuple[Path, Path]]:
    with net.mounted_again() as other:
        yield net.path, other


@pytest.fixture
def contest(
    request: pytest.FixtureRequest, fleet: Fleet, net: NetworkFolder, mounts: tuple[Path, Path], tmp_path: Path
) -> Contest:
    place = request.node.name
    (net.brick / place).mkdir()
    older, newer = (mount / place / "run" for mount in mounts)
    return Contest(fleet, net, net.brick / place / "run", older, newer, tmp_path)


@pytest.fixture(scope="module")
def undisturbed(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet.train(tmp_path_factory.mktemp("calm") / "run", 1, **SETTINGS)


def assert_same(run: Path, undisturbed: Path) -> None:
    assert_same_weights(run, undisturbed)
    assert [event["step"] for event in events(run, "train")] == list(range(1, SETTINGS["max_steps"] + 1))


@pytest.mark.parametrize(
    ("op", "path"),
    [
        ("rename", r"/leases/0+1/\.step-00000004"),
        ("rename", r"/leases/0+1/\.model\.pth"),
        ("write", r"/metrics\.jsonl"),
    ],
    ids=["checkpoint", "weights", "metrics"],
)
def test_a_call_that_is_late_changes_nothing(contest: Contest, undisturbed: Path, op: str, path: str) -> None:
    """The older job has asked whether the directory is still its own, and is suspended; its call is on its way."""
    contest.net.tell(hold={"ops": [op], "path": path})
    older = contest.begin(contest.older, "job-a", 0.0)
    process = older[0][0]
    assert contest.net.held_call(lambda: process.poll() is not None), older[1]
    os.killpg(process.pid, signal.SIGSTOP)
    contest.finish(contest.take_over(), 0)
    before = contest.snapshot()
    contest.net.tell(release=True)
    os.killpg(process.pid, signal.SIGCONT)
    assert "taken over by job-b" in contest.finish(older, 2)
    assert contest.snapshot() == before
    assert_same(contest.run, undisturbed)


def test_the_older_of_two_jobs_at_work_stops(contest: Contest, undisturbed: Path, tmp_path: Path) -> None:
    older = contest.begin(contest.older, "job-a", 0.5, **hold(tmp_path / "places", "5", "11"))
    saved, pid = contest.run / "checkpoints" / "step-00000004", older[0][0].pid
    patience.wait("no checkpoint", saved.exists, lambda: patience.processor_seconds(pid))
    newer = contest.take_over(0.5)
    (tmp_path / "places" / "5").unlink()
    # It works meanwhile, but not to the end: both clients look for the new server every few seconds
    former, pid = fence.folder_of(contest.run, 1), newer[0][0].pid
    patience.wait("it is not fenced off", lambda: not former.exists(), lambda: patience.processor_seconds(pid))
    (tmp_path / "places" / "11").unlink()
    assert "taken over by job-b" in contest.finish(older, 2)
    contest.finish(newer, 0)
    assert_same(contest.run, undisturbed)
    lease = json.loads((contest.run / "lease.json").read_text())
    manifests = [json.loads(path.read_text()) for path in contest.run.glob("checkpoints/*/manifest.json")]
    later = {one["holder"] for one in manifests if f"step-{one['step']:08d}" not in lease["trusted"]}
    assert later == {lease["holder"]}
