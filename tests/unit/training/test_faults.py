"""A run fails at every named point of its life (faulty.POINTS): right exit code, bounded, and resumed to the same bits.

FAULTS_SEED=N repeats the faults of a soak that failed; the seed is in its output, with each fault as it strikes (-s).
"""

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import faulty
import pytest
from conftest import ROOT, environment
from faulted import ENDLESS, SETTINGS, assert_ends, assert_one_fails, assert_same, start
from faulty import CODES, ERRORS, FIRST, LATER, POINTS, STEPWISE
from fleet import Fleet

from tests import patience

pytestmark = [pytest.mark.takes(90), pytest.mark.ranks(2)]

FAULTS, AT_ONCE = 200, 3  # of the soak; runs at a time: ranks often only wait for one that is gone


@pytest.fixture(scope="module")
def undisturbed(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet.train(tmp_path_factory.mktemp("calm") / "run", 1, **SETTINGS)


@pytest.fixture(scope="module")
def undisturbed2(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet.train(tmp_path_factory.mktemp("calm") / "run", 2, **SETTINGS)


def test_killed_at_every_point_and_resumed_to_the_same_bits(fleet: Fleet, tmp_path: Path, undisturbed: Path) -> None:
    run = tmp_path / "run"
    for point in POINTS:
        if point in ("summarized", "released", "leaving", "left"):
            (run / "summary.json").unlink(missing_ok=True)  # else the run is over, and its start ends with 0
        assert_ends(fleet, run, f"{point} kill", [-9], **ENDLESS)
    (run / "summary.json").unlink()
    assert_ends(fleet, run, "", [0], **ENDLESS)
    assert_same(run, undisturbed)
    assert not list((run / "checkpoints").glob(".*"))


def test_every_point_is_a_function_that_is_there() -> None:
    for point in POINTS:
        faulty.install(point, "kill", rank="another")


@pytest.mark.parametrize("point", ["counted", "leased", "copied"])
def test_no_failure_is_retried_forever(fleet: Fleet, tmp_path: Path, point: str) -> None:
    """Also one that no handler sees: as soon as it is counted, in the run directory, with all but a checkpoint done."""
    once = {"run.max_restarts": 1, "env": {"TRAINYARD_JOB": "job-a"}}
    for code in (-9, -9, 1):
        output = assert_ends(fleet, tmp_path / "run", f"{point} kill", [code], **once)
    assert f"1 restarts of {tmp_path / 'run'} without a new checkpoint" in output


def test_a_crash_while_torch_is_loaded_is_counted_too(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import os\nos.abort()\n")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    run = tmp_path / "run"
    options = ["--recipe=demo", f"--set=run.dir={run}", "--set=run.max_restarts=1"]
    codes = [
        patience.run([sys.executable, "-m", "trainers.ddp", *options], cwd=ROOT, env=env).returncode for _ in range(3)
    ]
    assert codes == [-signal.SIGABRT, -signal.SIGABRT, 1]


Table = Callable[[str, object], None]


def row(point: str, error: str, codes: object, then: str) -> str:
    """A row of the table of injected faults."""
    name, text, _ = ERRORS[error]
    return f"{point:12} {name.rpartition('.')[2]:18} {text.splitlines()[0][:64]:64} {codes!s:10} {then}"


HEALING = [error for error, (_, _, code) in ERRORS.items() if code >= 128]
SOME = [
    "connecting cuda", "opening stale", "entering stale", "built launch", "begun nccl", "step cublas", "forward cudnn",
    "copied stale", "validating system", "finishing aborted", "leaving late", "left nccl",
]  # fmt: skip


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(SOME, id="some"),
        pytest.param(
            [f"{point} {error}" for point, error in zip(POINTS, itertools.cycle(HEALING), strict=False)],
            id="at every point",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_what_may_heal_is_retried_wherever_it_happens(
    fleet: Fleet, tmp_path: Path, undisturbed: Path, faults: list[str], record_property: Table
) -> None:
    """One run meets all of it in turn, each start at a later point, and comes to the same bits."""
    run, rows = tmp_path / "run", []
    assert {fault.split()[1] for fault in faults} >= {*HEALING}
    for fault in faults:
        point, error = fault.split()
        if point in ("summarized", "released", "leaving", "left"):
            (run / "summary.json").unlink(missing_ok=True)  # else the run is over, and its start ends with 0
        assert_ends(fleet, run, fault, [CODES[error]], **ENDLESS)
        if error in ERRORS:
            rows.append(row(point, error, CODES[error], "resumed"))
    (run / "summary.json").unlink()
    assert_ends(fleet, run, "", [0], **ENDLESS)
    assert_same(run, undisturbed)
    for text in rows:
        record_property("table", ("Injected faults: place, error, exit code, what the next start does", text))


@pytest.mark.parametrize(
    ("point", "error"),
    [("connecting", "unfit"), ("built", "workspace"), ("step", "assertion"), ("forward", "random"),
     ("stepped", "usage"), ("validating", "memory"), ("copied", "assertion"), ("publishing", "memory")],
)  # fmt: skip
def test_errors_that_a_retry_cannot_heal_end_the_run(
    fleet: Fleet, tmp_path: Path, point: str, error: str, record_property: Table
) -> None:
    assert_ends(fleet, tmp_path / "run", f"{point} {error}", [CODES[error]])
    assert CODES[error] < 128, "an operator would retry it"
    text = row(point, error, CODES[error], "ended")
    record_property("table", ("Injected faults: place, error, exit code, what the next start does", text))


def test_the_one_that_gives_up_says_why_the_others_failed(fleet: Fleet, tmp_path: Path) -> None:
    once = {"run.max_restarts": 0, "env": {"TRAINYARD_JOB": "job-a"}}
    assert_ends(fleet, tmp_path / "run", "step cuda", [201], **once)
    output = assert_ends(fleet, tmp_path / "run", "", [1], **once)
    assert "The last start ended with 201: rank 0: a GPU failed: AcceleratorError: CUDA error: uncorrectable" in output


def test_memory_that_is_too_small_names_the_key_and_is_not_retried(fleet: Fleet, tmp_path: Path) -> None:
    output = assert_ends(fleet, tmp_path / "run", "forward memory", [2])
    said = (
        "the GPU's memory is too small (CUDA out of memory. Tried to allocate 2.00 GiB.); batch.micro = 0, no limit, "
        "so a forward takes 8 samples: set batch.micro to 4 or less; a validation takes validate.batch = 300"
    )
    assert said in output
    assert said in json.loads((tmp_path / "run" / "failed.json").read_text())["message"]


def test_memory_that_was_enough_before_is_worth_another_start(fleet: Fleet, tmp_path: Path, undisturbed: Path) -> None:
    """At a third step, then at the first of a start; with other settings the first one is the settings' fault again."""
    run = tmp_path / "run"
    for fault in ("forward memory 0 3", "forward memory 0 1", "forward pinned 0 1"):
        output = assert_ends(fleet, run, fault, [201], **ENDLESS)
        assert "in a step, for which it was enough before with these settings (" in output
    assert not (run / "failed.json").exists()
    assert_ends(fleet, run, "forward memory 0 1", [2], **ENDLESS, **{"data.prefetch": 3})
    assert_ends(fleet, run, "", [0], **ENDLESS)
    assert_same(run, undisturbed)


def test_want_of_memory_is_not_retried_forever(fleet: Fleet, tmp_path: Path) -> None:
    once = {"run.max_restarts": 1, "checkpoint.every_steps": 0, "env": {"TRAINYARD_JOB": "job-a"}}
    for code in (201, 201, 1):
        output = assert_ends(fleet, tmp_path / "run", "forward memory 0 3", [code], **once)
    assert "The last start ended with 201: rank 0: the GPU's memory is too small in a step" in output


def test_memory_of_the_node_is_told_from_the_gpus(fleet: Fleet, tmp_path: Path) -> None:
    output = assert_ends(fleet, tmp_path / "run", "forward pinned", [2])
    assert "the node's memory is too small (pinned memory: CUDA error: out of memory); batches that are" in output
    assert "lower data.prefetch = 2 or data.readahead = 1" in output


def test_a_checkpoint_whose_storage_fails_once_is_written_again(
    fleet: Fleet, tmp_path: Path, undisturbed: Path
) -> None:
    for point in ("written", "described", "renamed"):
        run = tmp_path / point
        output = assert_ends(fleet, run, f"{point} stale", [0])
        assert "step-00000002: Stale file handle; retried for up to" in output
        assert_same(run, undisturbed)


def test_an_unknown_error_is_tried_once_more(fleet: Fleet, tmp_path: Path, undisturbed: Path) -> None:
    job = {"env": {"TRAINYARD_JOB": "job-a"}}
    run = tmp_path / "once"
    output = assert_ends(fleet, run, "step bug", [202], **job)
    assert "ValueError: the code has a fault (tried once more" in output
    assert_ends(fleet, run, "", [0], **job)
    assert_same(run, undisturbed)

    run = tmp_path / "always"
    for code in (202, 1):
        assert_ends(fleet, run, "step bug", [code], **job)
    assert_ends(fleet, tmp_path / "shell", "step bug", [1])  # a person sees it at once


@pytest.mark.parametrize("rank", [0, 1])
def test_a_peer_that_dies_while_the_group_forms_is_retried(
    fleet: Fleet, tmp_path: Path, undisturbed2: Path, rank: int
) -> None:
    run = tmp_path / "run"
    assert_one_fails(fleet, run, f"connecting kill {rank}", **{"comm.timeout_seconds": 10})
    assert_ends(fleet, run, "", [0, 0])
    assert_same(run, undisturbed2)


def test_one_of_two_fails_and_the_other_ends_with_it(fleet: Fleet, tmp_path: Path, undisturbed2: Path) -> None:
    run = tmp_path / "run"
    for fault in (
        "opened kill 1",
        "begun cuda 1",
        "forward kill 1 3",
        "stepped cuda 0",
        "validating cuda 1",
        "leaving kill 1",
    ):
        assert_one_fails(fleet, run, fault, **ENDLESS)
        (run / "summary.json").unlink(missing_ok=True)
    assert_ends(fleet, run, "", [0, 0], **ENDLESS)
    assert_same(run, undisturbed2)


Fault = tuple[str, str, tuple[int, ...]]  # where, what, and the exit codes by rank


def survive(fleet: Fleet, run: Path, strategy: str, draw: random.Random, struck: list[Fault]) -> None:
    """One run, started until it is finished: its starts meet random faults while fewer than FAULTS have struck."""
    over = {"strategy": strategy, "comm.timeout_seconds": 20, **ENDLESS}
    codes: list[int] = []
    while codes != [0, 0]:
        resumes = any((run / "checkpoints").glob("step-*"))
        point = draw.choice([point for point in POINTS if resumes or point not in LATER])
        action = draw.choice(["kill", "kill", "stale", *(error for error in ERRORS if CODES[error] >= 128)])
        rank = 0 if point in FIRST else draw.randrange(2)
        hit = draw.randrange(1, 4) if point in STEPWISE else 1
        fault = f"{point} {action} {rank} {hit}" if len(struck) < FAULTS else ""
        codes, output = start(fleet, run, fault, 2, **over)
        assert set(codes) <= {0, 138, CODES[action]}, f"{fault}: {output}"
        if fault and CODES[action] in codes:
            struck.append((point, action, tuple(codes)))
        print(time.strftime("%H:%M:%S"), len(struck), run.name, fault or "no fault", codes, flush=True)


@pytest.mark.soak
def test_two_hundred_kills_and_faults(
    fleet: Fleet, tmp_path: Path, undisturbed2: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("FAULTS_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"FAULTS_SEED={seed}")
    undisturbed = {"ddp": undisturbed2, "fsdp": fleet.train(tmp_path / "calm", 2, **SETTINGS, strategy="fsdp")}
    struck: list[Fault] = []
    numbers, failed = itertools.count(), threading.Event()

    def one_after_the_other() -> None:
        while len(struck) < FAULTS and not failed.is_set():
            number = next(numbers)
            strategy = ("ddp", "fsdp")[number % 2]
            run = tmp_path / f"run-{number}-{strategy}"
            try:
                survive(fleet, run, strategy, random.Random(f"{seed} {run.name}"), struck)
                assert_same(run, undisturbed[strategy])
            except BaseException:
                failed.set()
                raise

    with futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(one_after_the_other) for _ in range(AT_ONCE)]:
            done.result()
    heading = f"{len(struck)} faults struck {len(list(tmp_path.glob('run-*/summary.json')))} runs"
    for title, column in (("fault", 1), ("exit codes by rank", 2), ("place", 0)):
        counts = Counter(str(fault[column]) for fault in struck)
        row = f"{title}: " + ", ".join(f"{count} {what}" for what, count in counts.most_common())
        record_property("table", (heading, row))
