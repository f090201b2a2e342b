"""A run that hangs ends within a set time, names the ranks that did not arrive, and shows where the others wait."""

import functools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT, Trainer, constants, environment, ranks_of, wait_for_step
from fleet import Fleet
from forked import Forker

from tests import patience
from trainyard.core.storage import storage
from trainyard.telemetry import beats, hang, hang_bound, mounts, watchdog

pytestmark = pytest.mark.takes(60)

HANG = 2.0  # seconds, on a machine that is not busy: a heartbeat that is late by half of it is a hang
AT_ONCE = 3.0  # HANGs at most, of which two looks take between one and two; what may take longer gets six
STUCK = {"kind": "compute", "rank": 1, "from": 5, "to": 5, "seconds": 600}


def faults(*faults: dict[str, Any], **bounds: float) -> dict[str, str]:
    """Environment of a run with these faults, and with these bounds of a hang. A slow disk may keep its last words."""
    own = {f"telemetry.hang_bound.{name}": seconds for name, seconds in bounds.items()}
    own["telemetry.watchdog.LAST_SECONDS"] = patience.IDLE
    return {"FAULTS": json.dumps(faults), "TRAINYARD_GRACE_SECONDS": "2", **constants(own)}


@pytest.fixture
def slowness() -> float:
    """How many times slower than that machine this one is just now; 5 at least, and 10 at most.

    One that seems not to be busy may stand still for some seconds later: a rank that was well was 3 s late. One that
    stood still while it was measured (90 was seen) would make a bound that other time-outs come before.
    """
    return min(10.0, max(5.0, patience.slowness()))


def at_once(least: float, slowness: float) -> float:
    """Seconds within which a hang of `least` seconds is noticed, also where the machine has become slower meanwhile."""
    return AT_ONCE * least * max(1.0, patience.slowness() / slowness)


def test_rank_stuck_in_the_users_code_is_named(fleet: Fleet, tmp_path: Path, slowness: float) -> None:
    run, over = tmp_path / "run", {"model.name": "slow_models:net", "comm.hang_seconds": HANG * slowness}
    codes, output = fleet.wait(fleet.start(run, 2, env=faults(STUCK), **over))
    assert codes == [138, 138], output
    assert "did not arrive: rank 1 on" in output
    note = json.loads((run / "hang.json").read_text())
    assert note["waited_seconds"] < at_once(HANG * slowness, slowness)
    assert ([missing["rank"] for missing in note["missing"]], note["step"]) == ([1], 4)
    assert "slow_models.py" in note["stacks"]["1"][-1]
    assert "suffer" in note["stacks"]["1"][-1]
    assert hang.in_collective(note["stacks"]["0"])
    logs = [(run / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 1)]
    assert any("did not arrive: rank 1 on" in log and "train_step" in log for log in logs)


def test_a_step_of_unusual_length_ends_the_run(fleet: Fleet, tmp_path: Path, slowness: float) -> None:
    """By the bound that the run has measured; a step of half of it, and a longer wait for data, do not."""
    run, least = tmp_path / "run", HANG * slowness
    slow = {"kind": "compute", "rank": 0, "from": 9, "to": 9, "seconds": 0.5 * least}
    stall = {"kind": "data", "rank": 0, "from": 8, "to": 8, "seconds": 1.5 * least}
    stuck = {"kind": "compute", "rank": 1, "from": 14, "to": 14, "seconds": 600}
    env = faults(slow, stall, stuck, LEAST=least, SILENT=least, MOST=20 * least, FACTOR=0.0)
    over = {"model.name": "slow_models:net", "comm.hang_seconds": "auto"}
    codes, output = fleet.wait(fleet.start(run, 2, env=env, **over))
    assert codes == [138, 138], output
    note = json.loads((run / "hang.json").read_text())
    assert ([missing["rank"] for missing in note["missing"]], note["step"]) == ([1], 13)
    assert round(least, 1) <= note["waited_seconds"] < at_once(least, slowness)  # the note has tenths


def test_a_rank_without_a_sign_of_life_is_not_waited_for(trainer: Trainer, tmp_path: Path, slowness: float) -> None:
    run, silent = tmp_path / "run", HANG * slowness
    env = {"STEP_SECONDS": "0.1", **faults(SILENT=silent, LEAST=50 * silent, MOST=100 * silent)}
    own = {"comm.hang_seconds": "auto", "checkpoint.every_steps": 0}  # one may take longer
    over = {"model.name": "slow_models:net", "epochs": 1000, **own}
    process = trainer.start(run, 2, env, **over)
    wait_for_step(run, 4, process)
    victim = ranks_of(process)[1]
    os.kill(victim, signal.SIGSTOP)
    output, _ = patience.communicate(process)
    assert process.returncode == 138, output
    note = json.loads((run / "hang.json").read_text())
    assert note["waited_seconds"] < at_once(silent, slowness)
    assert f"did not arrive: rank 1 on {os.uname().nodename}, pid {victim}: no sign of life" in output


def test_rank_that_is_stopped_is_named_by_the_others(trainer: Trainer, tmp_path: Path, slowness: float) -> None:
    run = tmp_path / "run"
    env = {"STEP_SECONDS": "0.1", **faults()}
    over = {"model.name": "slow_models:net", "comm.hang_seconds": HANG * slowness, "epochs": 1000}
    process = trainer.start(run, 3, env, **over)
    wait_for_step(run, 4, process)
    victim = ranks_of(process)[2]
    os.kill(victim, signal.SIGSTOP)
    output, _ = patience.communicate(process)
    assert process.returncode == 138, output
    note = json.loads((run / "hang.json").read_text())
    assert note["waited_seconds"] < at_once(HANG * slowness, slowness)
    assert [missing["rank"] for missing in note["missing"]] == [2]
    assert f"did not arrive: rank 2 on {os.uname().nodename}, pid {victim}: no sign of life" in output
    assert all(hang.in_collective(note["stacks"][rank]) for rank in ("0", "1"))
    # The rank that ends first always; the other may lose contact to it before it has looked for itself
    recorded = pickle.loads((run / "flight" / "gloo" / f"rank_{note['reported_by']}").read_bytes())
    assert recorded["entries"][-1]["process_group"]  # what torchfrtrace compares


@pytest.mark.root
def test_under_mpirun(trainer: Trainer, tmp_path: Path, slowness: float) -> None:
    run = tmp_path / "run"
    (tmp_path / "base.yaml").write_text("{}\n")
    settings = trainer.settings(run, **{"model.name": "slow_models:net", "comm.hang_seconds": HANG * slowness})
    options = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    command = [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2",
        sys.executable, "-m", "trainers.hvd", "--config", str(tmp_path / "base.yaml"), *options,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(faults(STUCK)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    trainer.running.append(process)
    output, _ = patience.communicate(process)
    assert process.returncode == 138, output
    assert "did not arrive: rank 1 on" in output
    assert [missing["rank"] for missing in json.loads((run / "hang.json").read_text())["missing"]] == [1]


PROGRAM = """
import sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from trainyard.telemetry import watchdog

BOUND, TICK = (8.0, 1.0) if sys.argv[3] == "8" else ("auto", 5.0)
looked, goes_on, now = threading.Semaphore(0), threading.Semaphore(0), [0.0]

class Pause(threading.Event):  # between two looks: as long as nobody lets time pass
    def wait(self, seconds):
        looked.release()
        goes_on.acquire()
        return self.is_set()

    def set(self):
        super().set()
        goes_on.release()

watchdog.LAST_SECONDS = 600  # a slow disk may keep its last words
watchdog.time = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
watchdog.threading = SimpleNamespace(Event=Pause, Thread=threading.Thread, main_thread=threading.main_thread)
alone = SimpleNamespace(rank=0, world=1, gather_objects=lambda value: [value])
watch = watchdog.Watchdog(Path(sys.argv[1]), alone, BOUND)
looked.acquire()
for what, seconds in eval(sys.argv[2]):
    watch.beat(what, 1)
    for _ in range(round(seconds / TICK)):  # looks in that time
        now[0] += TICK
        goes_on.release()
        looked.acquire()
watch.close()
"""


MEASURED = [("step", 5), *[("data", 5), ("step", 5)] * 5]  # the first step counts for nothing


@pytest.mark.parametrize(
    ("bound", "phases", "code"),
    [
        ("8", [("step", 44), ("step", 6), ("validation", 44), ("validation", 6), ("checkpoint", 6),
               ("checkpoint", 44)], 0),
        ("8", [("step", 6), ("step", 16)], 138),
        ("8", [("checkpoint", 6), ("checkpoint", 56)], 138),
        ("auto", [*MEASURED, ("step", 55), ("data", 5), ("step", 250)], 0),  # it has seen that such a step comes back
        ("auto", [*MEASURED, ("step", 90)], 138),
        ("auto", [("step", 1500), ("step", 250), ("step", 250)], 0),  # it compiles, or has measured too few
        ("auto", [*MEASURED, ("data", 250), ("step", 5), ("validation", 1500), ("validation", 250), ("checkpoint", 250),
                  ("checkpoint", 1500), ("finish", 1500)], 0),
        ("auto", [*MEASURED, ("data", 330)], 138),
        ("auto", [("checkpoint", 1900)], 138),
    ],
)  # fmt: skip
def test_what_may_take_longer(
    forker: Forker, tmp_path: Path, bound: str, phases: list[tuple[str, float]], code: int
) -> None:
    """Phases that last so many seconds, by a clock that only the phases move."""
    words = [sys.executable, "-c", PROGRAM, str(tmp_path), repr(phases), bound]
    done = forker.run(words, env=environment(), cwd=ROOT)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "hang.json").exists() == (code == 138)
    beat = json.loads((tmp_path / "heartbeats" / "rank-0.json").read_text())
    assert beat.get("done", False) == (code == 0)


def test_the_bound_of_a_step_follows_from_the_longest() -> None:
    measured = hang_bound.StepTimes()
    for seconds, bound in [(1, 300), (9, 300), (2, 300), (1, 300), (1, 90), (40, 300), (0.1, 300)]:
        measured.add(seconds)
        assert measured.bound == bound
    assert hang_bound.StepTimes(5, 0.2).bound == 60


def beat(number: int, *stack: str, **more: Any) -> dict[str, Any]:
    return {"rank": 0, "host": "a", "pid": 1, "what": "step", "step": 9, "beats": number, "stack": list(stack), **more}


def test_ranks_that_did_not_arrive() -> None:
    def ranks(found: list[dict[str, Any]], silent: list[int]) -> list[int]:
        return [missing.rank for missing in hang.find_missing(dict(enumerate(found)), silent)]

    waits, works = "/x/torch/distributed/c10d.py:1 all_reduce", "/home/me/model.py:7 forward"
    assert ranks([beat(9, waits), beat(9, works), beat(8, waits)], [2]) == [2]
    assert ranks([beat(9, waits), beat(9, works), beat(9, waits)], []) == [1]
    assert ranks([beat(9, works), beat(8, works), {}], []) == [1]
    assert ranks([beat(9, works), beat(8, works, done=True)], []) == []
    assert ranks([beat(9, waits), beat(9, waits)], []) == []
    assert "the network or the storage hangs" in hang.hang_message(0, "step", 9, 5.0, [])


def looks_at_another(
    tmp_path: Path, proven: bool, *looks: tuple[float, bool, dict[str, Any]]
) -> list[list[str] | None]:
    """What rank 0 finds missing at each look at rank 1: its own wait, whether rank 1 answers, and rank 1's file."""
    watch: Any = watchdog.Watchdog(tmp_path, SimpleNamespace(rank=0, world=2, gather_objects=lambda one: [one] * 2), 0)
    watch.close()
    watch._auto, watch._seconds, watch._proven = True, 300.0, proven
    watch.beat("step", 9)
    watch.beat("step", 9)
    found: list[list[str] | None] = []
    for seconds, answer, file in looks:
        watch._answers = SimpleNamespace(ask=lambda _, file=file, answer=answer: {1: file} if answer else {})
        watch._files = SimpleNamespace(read=lambda *_, file=file: {1: file}, stuck=lambda: ("", 0.0))
        watch._waited = seconds
        hang = watch._look(watch._now)
        found.append(None if hang is None else [str(one) for one in hang[0]])
    return found


WAITS = "/x/torch/distributed/c10d.py:1 all_reduce"


@pytest.mark.parametrize(
    ("waited", "proven", "named"),
    [
        ((150.0, 300.0), True, True),
        ((150.0, 150.0), True, False),  # it died: nothing is published any more
        ((0.0, 1.0), True, False),  # it died as this rank began to wait, and storage shows that late
        ((150.0, 300.0), False, False),  # this network lets no such packets pass, ever
    ],
)
def test_a_rank_that_lives_and_does_not_answer_is_behind_a_network_that_is_cut(
    tmp_path: Path, waited: tuple[float, float], proven: bool, named: bool
) -> None:
    files = [beat(3, WAITS, waited_seconds=seconds) for seconds in waited]
    first, second = looks_at_another(tmp_path, proven, (160.0, False, files[0]), (301.0, False, files[1]))
    assert first is None
    assert second is not None
    assert any("rank 1 on a, pid 1: alive by its file, but it no longer" in one for one in second) is named


@pytest.mark.parametrize(
    ("answered", "early"),
    [(True, beat(3, WAITS, time=1.0)), (False, {})],
    ids=["it answered at the first look", "its file could not be read at the first look"],
)
def test_a_rank_that_fell_silent_between_two_looks_is_named_at_the_next(
    tmp_path: Path, answered: bool, early: dict[str, Any]
) -> None:
    last = beat(3, WAITS, time=2.0)
    looks = looks_at_another(tmp_path, True, (160.0, answered, early), (301.0, False, last), (452.0, False, last))
    assert looks == [None, None, ["rank 1 on a, pid 1: no sign of life: stopped, cut off or gone"]]


def test_a_rank_whose_storage_hangs_is_named_before_those_that_wait_for_it() -> None:
    waits = "/x/torch/distributed/c10d.py:1 all_reduce"
    found = {0: beat(9, waits), 1: beat(9, waits, storage="/claim/file on the mount /claim hangs")}
    missing = hang.find_missing(found, [])
    assert [one.rank for one in missing] == [1]
    message = hang.hang_message(0, "step", 9, 5.0, missing)
    assert "alive, but its storage hangs: /claim/file on the mount /claim" in message
    assert "See the claim's server" in message


def test_a_rank_that_waits_for_its_gpu_is_among_the_waiting() -> None:
    """A GPU's tensor is not at hand here: the methods only have its methods' names, and wait as they do."""
    held = threading.Lock()

    class OnTheGpu:
        cpu = staticmethod(held.acquire)

        def tolist(self) -> bool:
            return True

    def waits() -> None:
        OnTheGpu().cpu(True)
        held.release()

    def works() -> None:
        held.acquire(OnTheGpu().tolist())
        held.release()

    for action, place, collective in ((waits, " waits .cpu", True), (works, " works .acquire", False)):
        thread = threading.Thread(target=action)
        with held:
            thread.start()
            stack = lambda thread=thread: hang.stack_of(thread.ident)  # noqa: E731
            patience.wait(lambda: f"{stack()}", lambda: stack()[-1].endswith(place), patience.still)  # noqa: B023
            assert hang.in_collective(stack()[-1:]) == collective
        thread.join()


def test_what_waits_for_no_file_is_not_taken_for_storage_that_hangs(tmp_path: Path) -> None:
    """Sleeping has a small number as its first argument, which is that of an open file, too; a FIFO is a file."""
    os.mkfifo(tmp_path / "fifo")
    over = threading.Event()

    def sleep() -> None:
        while not over.is_set():
            time.sleep(0.5)

    threads = [
        threading.Thread(target=sleep),
        threading.Thread(target=over.wait, args=(patience.IDLE,)),
        threading.Thread(target=lambda: (tmp_path / "fifo").open("rb").close()),
    ]
    for thread in threads:
        thread.start()
    own = {thread.native_id for thread in threads}  # another test's may be at a file just now
    calls = [Path(f"/proc/self/task/{number}/syscall") for number in own]
    sleeping = lambda: all(not path.read_text().startswith("running") for path in calls)  # noqa: E731
    found: dict[int, str] = {}

    def look() -> bool:
        found.clear()
        found.update((thread, path) for thread, path in mounts.blocked_files().items() if thread in own)
        return threads[2].native_id in found

    try:
        patience.wait("they do not wait", sleeping, patience.still)
        patience.wait("the FIFO is not found", look, patience.still)
    finally:
        over.set()
        (tmp_path / "fifo").open("wb").close()
        for thread in threads:
            thread.join()
    assert found == {threads[2].native_id: str(tmp_path / "fifo")}


def test_what_compiles_or_waits_for_storage_has_no_usual_length(tmp_path: Path) -> None:
    begun, over = threading.Semaphore(0), threading.Event()

    def compiles(graph: Any, _: Any) -> Any:
        begun.release()
        over.wait()
        return graph

    def reads() -> None:
        begun.release()
        storage.read_json(tmp_path / "fifo")

    def waits() -> None:
        begun.release()
        over.wait()

    os.mkfifo(tmp_path / "fifo")
    compiled = torch.compile(lambda x: x + 1, backend=compiles)
    try:
        for action, alone, of_main in (
            (waits, False, False), (reads, False, True), (lambda: compiled(torch.ones(1)), True, True)
        ):  # fmt: skip
            thread = threading.Thread(target=action)
            thread.start()
            begun.acquire()
            found = functools.partial(hang_bound.has_no_usual_length, thread.ident)
            patience.wait(f"{action}", lambda: found() == of_main, patience.still)  # noqa: B023
            assert hang_bound.has_no_usual_length(None) == alone
            if action is reads:
                (tmp_path / "fifo").open("wb").close()
                thread.join()
    finally:
        over.set()


def test_ranks_ask_each_other_without_storage() -> None:
    place: list[Any] = [None, None]
    begun = threading.Barrier(2)

    def started(number: int) -> beats.Answers:
        def exchange(mine: Any) -> list[Any]:
            place[number] = mine
            begun.wait()
            return place

        return beats.Answers(number, exchange, lambda: beat(number + 7))

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(started, (0, 1))
    assert one.ask(patience.IDLE) == {1: beat(8)}
    assert other.ask(patience.IDLE) == {0: beat(7)}
    assert one.reach_another(patience.IDLE)
    stranger = socket.socket(one._socket.family, socket.SOCK_DGRAM)
    stranger.settimeout(0.3)
    guesses = [json.dumps({"token": token, "asks": 1}).encode() for token in ("guessed", "gu\xe9ssed", "\ud800", None)]
    for message in (*guesses, b"[" * 60_000, b"\xff", b"7"):
        stranger.sendto(message, place[0][:2])
    with pytest.raises(TimeoutError):
        stranger.recv(100)
    assert other.ask(patience.IDLE) == {0: beat(7)}  # the strangers' messages have ended no thread
    other.close()
    assert one.ask(0.5) == {}  # it is silent now
    assert not one.reach_another(0.5)
    one.close()
    stranger.close()


def test_last_sign_of_life_of_an_earlier_start(tmp_path: Path) -> None:
    assert beats.last_alive(tmp_path, before=100.0) == 0.0
    (tmp_path / "heartbeats").mkdir()
    for rank, times in enumerate([(50.0, 0.0), (120.0, 60.0)]):
        text = json.dumps({"time": times[0], "previous": times[1]})
        (tmp_path / "heartbeats" / f"rank-{rank}.json").write_text(text)
    assert beats.last_alive(tmp_path, before=100.0) == 60.0
