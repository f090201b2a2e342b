"""A network file system that loses its server, hangs, is slow or fails calls, at every stage from archive to weights.

Each case holds one named call of the run, applies the fault, and lets the run continue. A process that ends with 128 or
more is started again, as operators do. The result must be that of an undisturbed run, bit for bit; a table says what
each fault cost.
"""

import re
import shutil
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Fleet
from netfs import NetworkFolder, net

from tests.prepare import make_archives
from trainers.exits import Exit
from trainers.prepare.build import build

__all__ = ["net"]
pytestmark = [pytest.mark.takes(100), pytest.mark.ranks(2)]

SETTINGS: dict[str, Any] = {
    "precision": "fp32", "model.batch_norm": "local", "batch.global": 20, "epochs": 1, "validate.batch": 90,
    "schedule.warmup_epochs": 0,
}  # fmt: skip
STARTS = 4  # most starts of a case; operators give up later
READS, WRITES = ["open", "read"], ["create", "write", "fsync", "mkdir", "rename"]
# The call at which a fault strikes, by stage
STAGES = {
    "preparation": {"ops": ["write"], "path": r"/\.prepare/.*tar"},
    "training": {"ops": ["read"], "path": r"/train/shard-.*tar"},
    "checkpoint": {"ops": ["write"], "path": r"/\.step-.*optimizer"},
    "publication": {"ops": ["write"], "path": r"/\.model\.pth"},
}


@dataclass
class Case:
    """What a fault has cost."""

    seconds: float = 0.0
    starts: int = 0
    failed: int = 0
    retries: int = 0


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archives.write_zip(tmp_path_factory.mktemp("archive") / "archive.zip", make_archives.imagenet())


@pytest.fixture(scope="module")
def prepared(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset, prepared on this machine's disk without a fault."""
    out = tmp_path_factory.mktemp("calm") / "little"
    build(make_archives.config(archive, out))
    return out


Ends = tuple[list[int], str]  # exit codes of all processes, and their output
Run = futures.Future[Ends]
Strike = Callable[[NetworkFolder, Run], None]  # on the file system, until the start has ended


def kill(seconds: float) -> Strike:
    def strike(net: NetworkFolder, run: Run) -> None:
        net.kill_server()
        net.tell(release=True)
        futures.wait([run], seconds)
        net.start_server()

    return strike


def stop(seconds: float) -> Strike:
    def strike(net: NetworkFolder, run: Run) -> None:
        with net.stopped():
            net.tell(release=True)
            time.sleep(seconds)

    return strike


def slow(net: NetworkFolder, run: Run) -> None:
    net.tell(delay=0.02, release=True)
    futures.wait([run])


def failing(ops: list[str]) -> Strike:
    def strike(net: NetworkFolder, run: Run) -> None:
        """The first of these calls fails, and 5 % of those that follow."""
        net.tell(fail={"ops": ops, "rate": 0.05, "errors": ["EIO", "ESTALE"]}, release=True)
        futures.wait([run])

    return strike


FAULTS: dict[str, Strike] = {
    "server killed, restarted": kill(1),
    "server stopped for 3 s": stop(3),
    "server stopped for 30 s": stop(30),
    "5 % of reads fail": failing(READS),
    "5 % of writes fail": failing(WRITES),
    "20 ms a call": slow,
}
CASES = [pytest.param(name, marks=pytest.mark.soak if "30 s" in name else ()) for name in FAULTS]


def survive(net: NetworkFolder, stage: str, fault: str, run: Callable[[], Ends]) -> Case:
    """Start something until it ends with 0, with a fault at its first start; what that took."""
    net.settle()
    case, codes, output = Case(), [-1], ""
    begun, before = time.monotonic(), net.tell(hold=STAGES[stage])["failed"]
    while any(codes):
        assert case.starts < STARTS, f"no end after {STARTS} starts: {output}"
        with futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(run)
            if case.starts == 0:
                held = net.held_call(running.done)
                assert held, f"no call of this stage was seen: {running.result()}"
                FAULTS[fault](net, running)
        codes, output = running.result()
        net.tell(fail=None, delay=0)
        case.starts += 1
        case.retries += len(re.findall("retried|written again", output))
        assert all(code == 0 or code < 0 or code >= 128 for code in codes), f"{codes}, which is not retried: {output}"
    case.seconds, case.failed = time.monotonic() - begun, net.tell()["failed"] - before
    return case


def note(record: Callable[[str, object], None], stage: str, fault: str, case: Case, calm: float) -> None:
    row = f"{stage:12} {fault:26} {case.seconds - calm:+7.1f} s {case.failed:5} {case.retries:8} {case.starts - 1:9}"
    record("table", ("during       fault                         cost  failed  retries  restarts", row))


@pytest.fixture(scope="module")
def calm_preparation(fleet: Fleet, net: NetworkFolder, archive: Path) -> float:
    """Seconds that an undisturbed preparation takes there, by a process that has imported what it needs."""
    preparing(fleet, net, archive, "first")
    begun = time.monotonic()
    codes, output = preparing(fleet, net, archive, "calm")
    assert codes == [0], output
    return time.monotonic() - begun


def preparing(fleet: Fleet, net: NetworkFolder, archive: Path, name: str, seconds: float = 120) -> Ends:
    options = ["build", "--set", f"out={net.path / name / 'little'}", "--set", "source.kind=path"]
    options += ["--set", f"source.path={archive}", "--set", "shard_mb=1", "--set", "workers=2"]
    logs, env = net.home / f"{name}-prepare-logs", {"TRAINYARD_STORAGE_SECONDS": str(seconds)}
    return fleet.wait(fleet.ranks("trainers.prepare", options, [env], logs))


@pytest.mark.parametrize("fault", CASES)
def test_preparation(
    fleet: Fleet, net: NetworkFolder, archive: Path, *, prepared: Path, calm_preparation: float, fault: str,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    name = f"prepare-{list(FAULTS).index(fault)}"
    case = survive(net, "preparation", fault, lambda: preparing(fleet, net, archive, name))
    note(record_property, "preparation", fault, case, calm_preparation)
    assert make_archives.contents(net.brick / name / "little") == make_archives.contents(prepared)


def test_storage_that_stays_away_ends_a_preparation_to_be_retried(
    fleet: Fleet, net: NetworkFolder, archive: Path, prepared: Path
) -> None:
    net.settle()
    net.tell(fail={"ops": ["write"], "path": r"/\.prepare/.*tar", "rate": 1, "errors": ["EIO"]})
    codes, output = preparing(fleet, net, archive, "away", seconds=1)
    assert codes == [Exit.STORAGE], output
    net.settle()
    codes, output = preparing(fleet, net, archive, "away")
    assert codes == [0], output
    assert make_archives.contents(net.brick / "away" / "little") == make_archives.contents(prepared)


@dataclass(frozen=True)
class Calm:
    """An undisturbed run, and the seconds that it took on the network file system."""

    weights: dict[str, torch.Tensor]
    seconds: float


@pytest.fixture(scope="module")
def calm(fleet: Fleet, net: NetworkFolder, prepared: Path) -> Calm:
    """A run whose files are on this machine's disk, and the time of one whose files are not."""
    shutil.copytree(prepared, net.brick / "data")
    (net.home / "local").mkdir()
    local = fleet.train(net.home / "local" / "run", 2, **SETTINGS, **{"data.dir": str(prepared)})
    begun = time.monotonic()
    codes, output = training(fleet, net, "calm")
    assert codes == [0, 0], output
    assert same(net.brick / "calm" / "run", weights(local))
    return Calm(weights(local), time.monotonic() - begun)


def training(fleet: Fleet, net: NetworkFolder, name: str) -> Ends:
    (net.brick / name).mkdir(exist_ok=True)
    over = {**SETTINGS, "data.dir": str(net.path / "data")}
    # what they print goes to this machine's disk, as in a pod
    logs = net.home / f"{name}-logs"
    return fleet.wait(fleet.start(net.path / name / "run", 2, env={"TRAINYARD_JOB": "job"}, logs=logs, **over))


def same(run: Path, wanted: dict[str, torch.Tensor]) -> bool:
    found = weights(run)
    return list(found) == list(wanted) and all(torch.equal(found[key], wanted[key]) for key in found)


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(run / "published" / "model.pth", weights_only=True)
    return found


@pytest.mark.parametrize("stage", ["training", "checkpoint", "publication"])
@pytest.mark.parametrize("fault", CASES)
def test_training(
    fleet: Fleet, net: NetworkFolder, calm: Calm, *, stage: str, fault: str,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    name = f"{stage}-{list(FAULTS).index(fault)}"
    case = survive(net, stage, fault, lambda: training(fleet, net, name))
    note(record_property, stage, fault, case, calm.seconds)
    assert same(net.brick / name / "run", calm.weights)
