"""A network file system that loses its server, hangs, is slow or fails calls, at every stage from archive to weights.

Each case holds one named call of the run, applies the fault, and lets the run continue. A process that ends with 128 or
more is started again, as operators do. The result must be that of an undisturbed run, bit for bit; a table says what
each fault cost. Several cases run at a time, each on a file system of its own: much of their time they wait for it.
"""

import queue
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fleet import Fleet
from netfs import NetworkFolder, served
from published import assert_same_weights

from tests.unit.prepare import make_archives
from trainyard.core.exits import Exit
from trainyard.prepare.build import build

AT_ONCE = 3
pytestmark = [pytest.mark.root, pytest.mark.takes(60), pytest.mark.ranks(2 * AT_ONCE)]

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


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archives.write_zip(tmp_path_factory.mktemp("archive") / "archive.zip", make_archives.imagenet())


@pytest.fixture(scope="module")
def prepared(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset, prepared on this machine's disk without a fault."""
    out = tmp_path_factory.mktemp("calm") / "little"
    build(make_archives.config(archive, out, seekable=True))
    return out


@pytest.fixture(scope="module")
def undisturbed(fleet: Fleet, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a fault, whose files are on this machine's disk."""
    return fleet.train(tmp_path_factory.mktemp("calm") / "run", 2, **SETTINGS, **{"data.dir": str(prepared)})


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


@dataclass
class Case:
    """What a fault has cost, and the folder of the server in which the result lies."""

    out: Path
    seconds: float = 0.0
    starts: int = 0
    failed: int = 0
    retries: int = 0


def survive(net: NetworkFolder, name: str, run: Callable[[], Ends], stage: str, fault: str) -> Case:
    """Start something until it ends with 0, with a fault, if one is named, at its first start; what that took."""
    net.settle()
    case, codes, output = Case(net.brick / name), [-1], ""
    begun, before = time.monotonic(), net.tell(**({"hold": STAGES[stage]} if fault else {}))["failed"]
    while any(codes):
        assert case.starts < STARTS, f"no end after {STARTS} starts: {output}"
        with futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(run)
            if fault and case.starts == 0:
                held = net.held_call(running.done)
                assert held, f"no call of this stage was seen: {running.result()}"
                FAULTS[fault](net, running)
        codes, output = running.result()
        net.tell(fail=None, delay=0)
        case.starts += 1
        case.retries += output.count("retried")
        assert all(code == 0 or code < 0 or code >= 128 for code in codes), f"{codes}, which is not retried: {output}"
    case.seconds, case.failed = time.monotonic() - begun, net.tell()["failed"] - before
    return case


def preparing(fleet: Fleet, net: NetworkFolder, archive: Path, name: str, seconds: float = 120) -> Ends:
    options = ["build", "--set", f"out={net.path / name / 'little'}", "--set", "source.kind=path"]
    options += ["--set", f"source.path={archive}", "--set", "shard_mb=1", "--set", "workers=2"]
    logs, env = net.home / f"{name}-prepare-logs", {"TRAINYARD_STORAGE_SECONDS": str(seconds)}
    return fleet.wait(fleet.ranks("trainyard", ["prepare", *options], [env], logs))


def training(fleet: Fleet, net: NetworkFolder, name: str) -> Ends:
    (net.brick / name).mkdir(exist_ok=True)
    over = {**SETTINGS, "data.dir": str(net.path / "data")}
    # what they print goes to this machine's disk, as in a pod
    logs = net.home / f"{name}-logs"
    return fleet.wait(fleet.start(net.path / name / "run", 2, env={"TRAINYARD_JOB": "job"}, logs=logs, **over))


Found = TypeVar("Found")
Anywhere = Callable[[Callable[[NetworkFolder], Found]], "futures.Future[Found]"]


@pytest.fixture(scope="module")
def anywhere(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anywhere[Any]]:
    """Runs something beside the tests on one of the file systems, when one is idle."""
    idle: queue.SimpleQueue[NetworkFolder] = queue.SimpleQueue()

    def on_idle(use: Callable[[NetworkFolder], Found]) -> Found:
        net = idle.get()
        try:
            return use(net)
        finally:
            idle.put(net)

    with ExitStack() as stack:
        for _ in range(AT_ONCE):
            net = stack.enter_context(served(tmp_path_factory))
            shutil.copytree(prepared, net.brick / "data")
            idle.put(net)
        pool = stack.enter_context(futures.ThreadPoolExecutor(AT_ONCE))
        stack.callback(pool.shutdown, cancel_futures=True)
        yield lambda use: pool.submit(on_idle, use)


def kind_of(stage: str) -> str:
    return stage if stage == "preparation" else "training"


class Cases:
    """All chosen cases, as they run, and beside them one without a fault of each kind, which tells what faults cost."""

    def __init__(self, chosen: list[tuple[str, str]], run: Callable[[str, str, str], "futures.Future[Case]"]) -> None:
        kinds = sorted({kind_of(stage) for stage, _ in chosen})
        self._calm = {kind: run(kind, "", f"calm-{kind}") for kind in kinds}
        self._cases = {case: run(*case, f"{case[0]}-{number}") for number, case in enumerate(chosen)}

    def calm(self, stage: str) -> Case:
        """The undisturbed run or preparation."""
        return self._calm[kind_of(stage)].result()

    def result(self, stage: str, fault: str, record: Callable[[str, object], None]) -> Case:
        """Wait for a case, and note what its fault has cost."""
        case = self._cases[stage, fault].result()
        cost = case.seconds - self.calm(stage).seconds
        row = f"{stage:12} {fault:26} {cost:+7.1f} s {case.failed:5} {case.retries:8} {case.starts - 1:9}"
        record("table", ("during       fault                         cost  failed  retries  restarts", row))
        return case


@pytest.fixture(scope="module")
def cases(
    request: pytest.FixtureRequest, fleet: Fleet, anywhere: Anywhere[Case], archive: Path, undisturbed: Path
) -> Cases:
    """Begins once a run has ended: the first one waits until processes can be forked."""
    found = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]

    def run(stage: str, fault: str, name: str) -> "futures.Future[Case]":
        def once(net: NetworkFolder) -> Ends:
            return preparing(fleet, net, archive, name) if stage == "preparation" else training(fleet, net, name)

        return anywhere(lambda net: survive(net, name, lambda: once(net), stage, fault))

    return Cases([(params.get("stage", "preparation"), params["fault"]) for params in found], run)


@pytest.mark.parametrize("fault", CASES)
def test_preparation(cases: Cases, prepared: Path, record_property: Callable[[str, object], None], fault: str) -> None:
    case = cases.result("preparation", fault, record_property)
    for one in (case, cases.calm("preparation")):
        assert make_archives.contents(one.out / "little") == make_archives.contents(prepared)


def test_storage_that_stays_away_ends_a_preparation_to_be_retried(
    fleet: Fleet, anywhere: Anywhere[None], archive: Path, prepared: Path
) -> None:
    def stays_away(net: NetworkFolder) -> None:
        net.settle()
        net.tell(fail={"ops": ["write"], "path": r"/\.prepare/.*tar", "rate": 1, "errors": ["EIO"]})
        codes, output = preparing(fleet, net, archive, "away", seconds=1)
        assert codes == [Exit.STORAGE], output
        net.settle()
        codes, output = preparing(fleet, net, archive, "away")
        assert codes == [0], output
        assert make_archives.contents(net.brick / "away" / "little") == make_archives.contents(prepared)

    anywhere(stays_away).result()


def test_no_index_is_published_of_which_a_write_failed(
    fleet: Fleet, anywhere: Anywhere[None], archive: Path, prepared: Path
) -> None:
    def fails(net: NetworkFolder) -> None:
        net.settle()
        net.tell(fail={"ops": ["write"], "path": r"\.npy\.tmp", "rate": 0.5, "first": 0, "errors": ["EIO"]})
        codes, output = preparing(fleet, net, archive, "index")
        assert codes == [0], output
        assert net.tell(fail=None)["failed"]
        assert make_archives.contents(net.brick / "index" / "little") == make_archives.contents(prepared)

    anywhere(fails).result()


@pytest.mark.parametrize("stage", ["training", "checkpoint", "publication"])
@pytest.mark.parametrize("fault", CASES)
def test_training(
    cases: Cases, undisturbed: Path, record_property: Callable[[str, object], None], stage: str, fault: str
) -> None:
    case = cases.result(stage, fault, record_property)
    for one in (case, cases.calm(stage)):
        assert_same_weights(one.out / "run", undisturbed)
