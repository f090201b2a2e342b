"""Where the seconds of a run go: each cause is provoked and found, over a kill and a restart; the slowest rank too.

One run on two processes suffers all of it in turn; with a line of metrics for each step, every fault is seen in the
lines of its steps and not in the others'.
"""

import json
import os
import shutil
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import events
from fleet import Fleet

from tests import patience
from trainyard.run import checkpoint
from trainyard.telemetry import clock as clocks
from trainyard.telemetry import stragglers as slowest
from trainyard.telemetry.beats import last_alive
from trainyard.telemetry.clock import CAUSES, Clock, goodput
from trainyard.telemetry.goodput import settle
from trainyard.training import loop

LONG = 0.3  # seconds on a machine that is not busy, where a step takes about 0.02 s by itself
# Steps (8 an epoch) with what is slow in them, on which rank; the first process's seconds are the run's.
SLOW: dict[str, dict[str, Any]] = {
    "data_wait": {"kind": "data", "rank": 0, "from": 3, "to": 4, "seconds": LONG},
    "compute": {"kind": "compute", "rank": 0, "from": 6, "to": 7, "seconds": LONG},
    "communication": {"kind": "compute", "rank": 1, "from": 10, "to": 11, "seconds": LONG},
    "data_of_rank_1": {"kind": "data", "rank": 1, "from": 12, "to": 12, "seconds": LONG},
    "data_of_rank_1_before": {"kind": "data", "rank": 1, "from": 8, "to": 8, "seconds": LONG},
    "lost": {"kind": "compute", "from": 14, "to": 14, "seconds": LONG},
    "checkpoint": {"kind": "checkpoint", "seconds": 0.3},
    "validation": {"kind": "validation", "seconds": 0.5},
}
AWAY = 1.0


@pytest.fixture(scope="module")
def slowness() -> float:
    """How much longer than on a quiet machine the faults of the run last, so that they outweigh its other work."""
    return min(4.0, patience.slowness())


@pytest.fixture(scope="module")
def run(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, slowness: float) -> Path:
    """Two epochs; killed as a whole after step 14, two after the last checkpoint, and started again 1 s later."""
    run = tmp_path_factory.mktemp("goodput") / "run"
    over = {
        "model.name": "slow_models:net", "checkpoint.every_steps": 4, "model.batch_norm": "local",
        "epochs": 2,
    }  # fmt: skip
    slow = [fault | {"seconds": fault["seconds"] * slowness} for fault in SLOW.values()]
    faults = [*slow, {"kind": "compute", "from": 15, "seconds": 3600}]
    job = fleet.start(run, 2, env={"FAULTS": json.dumps(faults)}, **over)
    steps = lambda: [event["step"] for event in events(run, "train")]  # noqa: E731
    ended = lambda: any(process.poll() is not None for process in job[0])  # noqa: E731
    saved = run / "checkpoints" / "step-00000012" / "manifest.json"  # which is written while the next steps are done
    patience.wait("step 14", lambda: (14 in steps() and saved.exists()) or ended(), steps)
    assert not ended(), fleet.wait(job)[1]
    for rank in (0, 1):
        os.kill(json.loads((run / "heartbeats" / f"rank-{rank}.json").read_text())["pid"], signal.SIGKILL)
    assert fleet.wait(job)[0] == [-9, -9]
    shutil.copytree(run, run.parent / "killed")
    time.sleep(AWAY)
    fleet.train(run, 2, **over)
    return run


@pytest.mark.parametrize(("device", "reading"), [(0.5, 0.2), (0.2, 0.5), (0.4, 0.3), (0.5, 0.0)])
def test_the_split_of_time_is_that_of_a_device_behind_its_host(
    fleet: Fleet, tmp_path: Path, device: float, reading: float
) -> None:
    """The host asks for a step within milliseconds; a wait for data counts while the device has no work."""
    pace = min(10.0, patience.slowness())
    device, reading = (seconds * pace for seconds in (device, reading))
    env = {"DEVICE_SECONDS": str(device), "FAULTS": json.dumps([{"kind": "data", "seconds": reading}])}
    over = {"model.name": "slow_models:lagging", "max_steps": 18, "epochs": None, "log.every_steps": 6}
    fleet.train(tmp_path / "run", 1, env=env, **over)
    lines = [shares(tmp_path / "run", cause, range(12, 19, 6)) for cause in ("compute", "data_wait")]
    six = 6 * max(device, reading) + min(device, reading)  # once in six steps the device is waited for, for the metrics
    # of both, since the host's own work takes more on a busy machine; by the host's clock it would be 0.3 less and more
    found = [compute / (compute + waits) for compute, waits in zip(*lines, strict=True)]
    # a machine that stands still in a line's steps may spoil that one
    assert min(abs(one - 6 * device / six) for one in found) < 0.2, found


def shares(run: Path, cause: str, steps: range) -> list[float]:
    """The share that a cause has in the lines of some steps, before the restart or after it."""
    lines = {event["step"]: event["seconds"] for event in events(run, "train")}
    return [lines[step][cause] / sum(lines[step].values()) for step in steps]


def test_each_cause_is_seen_where_it_is_provoked(run: Path, slowness: float) -> None:
    lines = {event["step"]: event["seconds"] for event in events(run.parent / "killed", "train")}
    for cause in ("data_wait", "compute", "communication"):
        fault = SLOW[cause]
        steps = range(fault["from"], fault["to"] + 1)
        # and so less than that where another one is provoked; a machine that stands still in a step may spoil that one
        assert max(shares(run, cause, steps)) > 0.5, cause
    summary = json.loads((run / "summary.json").read_text())
    seconds = summary["seconds"]
    assert set(seconds) == set(CAUSES)
    assert seconds["checkpoint"] >= 3 * 0.3 * slowness
    assert [step for step, line in lines.items() if line["checkpoint"]] == [5, 9, 13], "after every fourth step"
    assert seconds["publish"] > 0  # after the last step, and so in no line of one
    assert all(line["publish"] == 0 for line in lines.values())
    # 4 rounds of two processes in the one epoch before the kill
    assert seconds["validation"] >= 4 * 0.5 * slowness
    assert [step for step, line in lines.items() if line["validation"]] == [9], "after the epoch"
    assert summary["goodput"] == pytest.approx(seconds["compute"] / sum(seconds.values()), abs=1e-3)


def test_work_done_again_and_waiting_are_counted(run: Path, slowness: float) -> None:
    """Numbers are compared with what the first start had written when it was killed; they are rounded."""
    seconds = json.loads((run / "summary.json").read_text())["seconds"]
    first, again = events(run, "start")
    killed = run.parent / "killed"
    signs = [event["time"] for kind in ("train", "checkpoint", "validate") for event in events(killed, kind)]
    alive = max(*signs, last_alive(killed, before=again["started"]))
    assert again["restarts"] == 1
    # The last checkpoint was begun with step 12; what came after it was lost.
    kept = checkpoint.at(killed / "checkpoints" / "step-00000012").meta["seconds"]
    assert seconds["lost"] == pytest.approx(alive - first["started"] - sum(kept.values()), abs=0.02)
    assert seconds["lost"] >= LONG * slowness
    assert seconds["restart_wait"] == pytest.approx(again["started"] - alive, abs=0.02)
    assert seconds["restart_wait"] >= AWAY
    resume = events(run, "resume")[0]
    assert (resume["step"], resume["lost_steps"]) == (12, 2)
    assert resume["lost_seconds"] == pytest.approx(seconds["lost"], abs=0.01)


def test_each_interruption_has_its_phases(run: Path) -> None:
    first, again = events(run, "start")
    for start in (first, again):
        before = sum(start["seconds"][cause] for cause in ("lost", "restart_wait", "init"))
        assert sum(start["phases"].values()) == pytest.approx(before, abs=0.02)  # rounded
        assert min(start["phases"][phase] for phase in ("loading", "joining", "building")) > 0
    assert again["phases"]["repeated"] == pytest.approx(again["seconds"]["lost"], abs=0.01)
    assert again["phases"]["away"] == pytest.approx(again["seconds"]["restart_wait"], abs=0.01)
    assert again["phases"]["noticing"] == again["phases"]["launching"] == 0  # killed at once, and without a launcher


def test_every_second_of_the_whole_run_has_a_cause(run: Path) -> None:
    seconds = json.loads((run / "summary.json").read_text())["seconds"]
    started, last, ended = (
        events(run, "start")[0]["started"], events(run, "validate")[-1]["time"], events(run, "end")[-1]["time"]
    )  # fmt: skip
    wall = ended - started
    assert last - started - 0.02 < sum(seconds.values()) < wall + 0.02  # rounded
    assert seconds["other"] <= 0.02 * wall
    train = [event["seconds"] for event in events(run, "train")]
    assert sum(line["other"] for line in train) <= 0.02 * sum(sum(line.values()) for line in train)


def test_a_wait_for_a_note_on_storage_has_a_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = lambda *_: time.sleep(0.2)  # noqa: E731
    monkeypatch.setattr("trainyard.training.loop.starts.note_fit", waits)
    monkeypatch.setattr("trainyard.training.loop.checkpoint.score", waits)
    clock = Clock(time.monotonic())
    clock.begin()
    t: Any = SimpleNamespace(
        strategy=SimpleNamespace(is_rank0=True, world=1), progress=SimpleNamespace(fits=set(), step=8),
        config=SimpleNamespace(checkpoint=SimpleNamespace(keep_best=1), model=SimpleNamespace(pretrained=True)),
        records=SimpleNamespace(
            clock=clock, recorder=SimpleNamespace(report_validation=waits),
            directory=SimpleNamespace(path=tmp_path, checkpoints=tmp_path, staging=tmp_path, fenced=nullcontext),
        ),
    )  # fmt: skip
    for part, cause in (("step", "init"), ("checkpoint", "checkpoint")):
        loop.note_fit(t, part)
        assert clock.read()[cause] >= 0.2
    result: Any = SimpleNamespace(top1=50.0)
    loop.note_validation(t, 1, result)  # notes that it fits in memory, its score for keep_best, and its result
    assert clock.read()["validation"] >= 0.6


def test_the_slowest_rank_and_its_cause_are_named(run: Path) -> None:
    found = {event["step"]: event["slowest"] for event in events(run, "train")}
    for rank, cause, steps in (
        (0, "data", (3, 4)),
        (0, "compute", (6, 7)),
        (1, "compute", (10, 11)),
        (1, "data", (8, 12)),
    ):
        lines = [found[step] for step in steps]  # a machine that stands still in one of the steps may spoil that one
        named = [line for line in lines if (line["rank"], line["cause"]) == (rank, cause) and line["behind"] > 0.3]
        assert named, lines
    summary = json.loads((run / "summary.json").read_text())
    assert summary["slowest_rank"].keys() == {"rank", "cause", "behind"}
    assert [set(rank["seconds"]) for rank in summary["ranks"]] == [set(slowest.PARTS)] * 2


def test_confusions_are_those_of_all_processes(run: Path) -> None:
    with np.load(run / "validation" / "confusion.npz") as archive:
        confusion, names = archive["confusion"], list(archive["classes"])
    last = events(run, "validate")[-1]
    assert (confusion.shape, confusion.sum(), confusion.trace()) == ((4, 4), last["samples"], last["correct"])
    assert names == [f"class{index}" for index in range(4)]


def test_slow_but_living_is_no_hang(fleet: Fleet, tmp_path: Path) -> None:
    """A first step may take longer than comm.hang_seconds, within which a rank that stands still would be missed."""
    env = {"FAULTS": json.dumps([{"kind": "compute", "seconds": 15.0}])}
    over = {"model.name": "slow_models:net", "comm.hang_seconds": 12, "max_steps": 1, "epochs": None}
    run = fleet.train(tmp_path / "run", 2, env=env, **over)
    assert not (run / "hang.json").exists()


def test_exploding_loss_ends_the_run_with_step_ranks_and_samples(fleet: Fleet, tmp_path: Path) -> None:
    run = tmp_path / "run"
    over = {"model.name": "slow_models:net", "model.batch_norm": "local", "log.max_loss": 50.0, "log.every_steps": 3}
    codes, output = fleet.wait(fleet.start(run, 2, env={"LOSS": "1000"}, **over))
    assert codes == [77, 77], output
    assert "above log.max_loss = 50, on ranks [1]" in output
    failed = json.loads((run / "failed.json").read_text())
    assert (failed["code"], failed["step"], failed["ranks"]) == (77, 4, [1])
    records = [json.loads((run / "samples" / f"rank-{rank}.jsonl").read_text().splitlines()[3]) for rank in (0, 1)]
    assert failed["sample_ids"] == [sample for record in records for sample in record["sample_ids"]]


def test_slowest_of_many() -> None:
    even = [[0.1, 1.0, 0.2]] * 4
    assert slowest.find(even[:1], 1.3) is None
    assert slowest.find(even, 1.3) == slowest.Slowest(0, "compute", 0.0)
    assert slowest.find([[0.0, 0.2, 1.0]] * 3, 1.2) == slowest.Slowest(0, "communication", 0.0)
    assert slowest.find([*even, [0.6, 1.0, 0.0]], 1.6) == slowest.Slowest(4, "data", 0.3125)
    assert slowest.find([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]], 1.0) == slowest.Slowest(1, "compute", 0.5)


def lines(*rows: tuple[int, list[list[float]]]) -> list[float]:
    """What is said of lines of 10 steps each: so many of each kind."""
    network = slowest.Network()
    return [network.slower(times, 10) for count, times in rows for _ in range(count)]


def test_a_network_that_became_slow() -> None:
    calm, slow = [[0.1, 3.0, 0.9], [0.1, 2.5, 1.4]], [[0.1, 3.0, 12.9], [0.1, 2.5, 13.4]]
    assert lines((4, calm), (3, slow), (1, calm), (1, slow)) == [0, 0, 0, 0, 0, 4, 4, 0, 0]
    assert not any(lines((1, calm), (9, slow)))  # too little is known of calm steps
    assert not any(lines((4, calm), *[(1, slow), (1, calm)] * 4))  # once, as where a process is stopped for a while
    for others in (
        [[12.1, 3.0, 0.9], [0.1, 2.5, 13.4]],  # one rank waits for data, or computes longer; the other one for it
        [[0.1, 15.0, 0.9], [0.1, 2.5, 13.4]],
        [[12.1, 3.0, 0.9], [12.1, 2.5, 1.4]],
        [[0.1, 7.0, 8.9], [0.1, 7.0, 8.9]],  # all of a machine is slow
        [[0.1, 3.0, 7.0], [0.1, 2.5, 7.5]],  # two and a half times
    ):
        assert not any(lines((4, calm), (5, others))), others
    quick, late = ([[value / 100 for value in row] for row in rows] for rows in (calm, slow))
    assert not any(lines((9, quick), (9, late)))  # for 1.5 s


def test_seconds_are_moved_but_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7.0]
    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    clock = Clock(5.0)
    clock.move("init", "communication", 0.5)
    clock.move("init", "communication", -1.0)
    assert clock.read()["communication"] == 0.5
    clock.move("init", "communication", 100.0)
    now[0] += 0.25
    seconds = clock.read()
    assert (seconds["init"], seconds["communication"]) == (0.25, 2.0)
    assert goodput({"compute": 3.0, "lost": 1.0}) == 0.75


def test_the_phases_of_a_start_are_its_seconds_when_they_were_read() -> None:
    clock = Clock(time.monotonic() - 5.0)
    clock.note_start(loaded=time.monotonic() - 3.0, joined=time.monotonic() - 1.0)
    seconds = clock.read()
    time.sleep(0.2)  # ranks are waited for
    assert sum(clock.phases().values()) == pytest.approx(seconds["init"], abs=0.01)


def record(folder: Path, *lines: dict[str, Any]) -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


START = {"event": "start", "step": 0, "time": 1010.0, "started": 1000.0, "idle": 0.0}


def started_at(moment: float, before: dict[str, float]) -> Clock:
    clock = Clock(time.monotonic(), before)
    clock.started = moment
    return clock


def test_a_start_before_the_first_checkpoint_is_lost_as_a_whole(tmp_path: Path) -> None:
    clock = started_at(1060.0, {})
    past = settle(clock, record(tmp_path, START, {"event": "train", "step": 3, "time": 1040.0}), step=0)
    assert (past.restarts, past.lost, past.waited) == (1, 40.0, 20.0)
    assert (clock.read()["lost"], clock.read()["restart_wait"]) == (40.0, 20.0)


@pytest.mark.parametrize(
    ("noticed", "waited", "counts"), [(1050.0, 30.0, 30.0), (1050.0, 90.0, 50.0), (990.0, 30.0, 0.0)]
)
def test_a_hang_of_the_last_start_took_time_to_notice(
    tmp_path: Path, noticed: float, waited: float, counts: float
) -> None:
    (tmp_path / "hang.json").write_text(json.dumps({"time": noticed, "waited_seconds": waited}))
    lines = (START, {"event": "train", "step": 3, "time": 1020.0}, {"event": "validate", "step": 3, "time": 1050.0})
    past = settle(started_at(1060.0, {}), record(tmp_path, *lines), step=0)
    assert (past.lost, past.waited, past.noticing) == (50.0, 10.0, counts)
    assert past.phases() == {"repeated": 50.0 - counts, "noticing": counts, "away": 10.0, "launching": 0.0}


def test_what_a_launcher_took_is_no_time_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = clocks.process_start()
    monkeypatch.setattr("trainyard.telemetry.goodput.process_start", lambda pid="self": began - 4.0 * (pid != "self"))
    monkeypatch.setenv("TRAINYARD_LAUNCHER", "1")
    lines = record(tmp_path, START, {"event": "train", "step": 3, "time": 1040.0})
    assert settle(started_at(1060.0, {}), lines, step=0).phases()["away"] == 16.0
    # restarted in place: the launcher is older than the failure
    assert settle(started_at(1042.0, {}), lines, step=0).phases() | {"repeated": 0} == {
        "repeated": 0, "noticing": 0.0, "away": 0.0, "launching": 2.0}  # fmt: skip
    monkeypatch.setenv("TRAINYARD_LAUNCHER", "none")
    assert settle(started_at(1060.0, {}), lines, step=0).launching == 0


def test_an_orderly_stop_loses_nothing(tmp_path: Path) -> None:
    end = {"event": "end", "step": 8, "time": 1050.0, "status": "stopped", "seconds_total": {"init": 10, "compute": 40}}
    clock = started_at(1090.0, {"init": 10.0, "compute": 36.0})
    past = settle(clock, record(tmp_path, START, end), step=8)
    assert (past.restarts, past.lost, past.waited) == (1, 0.0, 40.0)
    assert clock.read()["compute"] == 40.0


def test_a_start_after_an_orderly_stop_is_no_interruption(tmp_path: Path) -> None:
    step = {"event": "train", "step": 8, "time": 1040.0}
    stop = {"event": "end", "step": 8, "time": 1050.0, "status": "stopped", "seconds_total": {"compute": 40}}
    failed = {**stop, "status": "failed"}
    for lines, count in (((START, stop), 0), ((START, stop, START, step), 1), ((START, START, stop, START, failed), 2)):
        past = settle(started_at(1090.0, {}), record(tmp_path, *lines), step=8)
        assert past.interruptions == count


def test_nobody_waits_for_a_longer_run_to_be_asked_for(tmp_path: Path) -> None:
    end = {"event": "end", "step": 8, "time": 1050.0, "status": "finished", "seconds_total": {"compute": 50}}
    clock = started_at(9050.0, {"compute": 50.0})
    past = settle(clock, record(tmp_path, START, end), step=8)
    assert (past.restarts, past.lost, past.waited, past.idle) == (1, 0.0, 0.0, 8000.0)
    again = {**START, "step": 8, "time": 9060.0, "started": 9050.0, "idle": 8000.0}
    clock = started_at(9100.0, {"compute": 50.0})
    past = settle(clock, record(tmp_path, START, end, again, {"event": "train", "step": 9, "time": 9080.0}), step=8)
    assert (past.restarts, past.lost, past.waited, past.idle) == (2, 30.0, 20.0, 8000.0)
