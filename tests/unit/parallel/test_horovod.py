"""Horovod over MPI, under a real mpirun: the losses of one process; Adasum, which only MPI has on CPUs; faults."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Trainer, environment, events
from faulted import ENDLESS, SETTINGS, assert_one_fails, assert_same
from faulty import CODES
from fleet import Fleet
from published import weights

from tests import patience

pytestmark = [pytest.mark.root, pytest.mark.takes(60)]
STEPS = 20
SAME = {
    "max_steps": STEPS, "epochs": None, "validate.every_epochs": 0, "checkpoint.every_steps": 0, "augment.mixup": 0.2,
}  # fmt: skip
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none", "HOME": os.environ.get("HOME", "/"),
}  # fmt: skip


def mpirun(trainer: Trainer, run: Path, world: int, fault: str | None = None, **over: Any) -> tuple[int, str]:
    """Run to the end, failing as told (faulty.py): exit code and output."""
    options = [f"--set={key}={json.dumps(value)}" for key, value in trainer.settings(run, **over).items()]
    (run.parent / "base.yaml").write_text("{}\n")
    module = "trainers.hvd" if fault is None else "faulty"
    env = MPI if fault is None else {**MPI, "FAULT": fault, "FAULT_UNDER": "horovod"}
    command = ["mpirun", "-np", str(world), sys.executable, "-m", module, "--config"]
    done = patience.run(
        [*command, str(run.parent / "base.yaml"), *options], cwd=ROOT, env=environment(env),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_rank_that_waits_in_mpi_keeps_no_core_busy(tmp_path: Path) -> None:
    command = ["mpirun", "-np", "2", sys.executable, "-m", "inside_ranks", "stopped", str(tmp_path), "horovod"]
    done = patience.run(command, cwd=ROOT, env=environment(MPI), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert json.loads((tmp_path / "0.json").read_text()) < 0.6, "by itself OpenMPI looks for messages without end"


def test_mpi_gives_the_losses_of_one_process(trainer: Trainer, fleet: Fleet, tmp_path: Path) -> None:
    alone = fleet.train(tmp_path / "alone", 1, **SAME)
    code, output = mpirun(trainer, tmp_path / "run", 2, **SAME)
    assert code == 0, output
    pairs = zip(events(alone, "train"), events(tmp_path / "run", "train"), strict=True)
    assert max(abs(a["loss"] - b["loss"]) for a, b in pairs) <= 1e-12


ADASUM = {"precision": "fp32", "model.batch_norm": "local", "schedule.warmup_epochs": 0}


@pytest.fixture(scope="module")
def adasum(session_trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes with Adasum."""
    run = tmp_path_factory.mktemp("adasum") / "run"
    code, output = mpirun(session_trainer, run, 2, **SAME, **ADASUM, **{"horovod.op": "adasum", "optimizer.lr": 0.2})
    assert code == 0, output
    return run


def test_adasum_learns(adasum: Path) -> None:
    found = [event["loss"] for event in events(adasum, "train")]
    assert len(found) == STEPS
    assert sum(found[-8:]) < 0.9 * sum(found[:8])
    assert weights(adasum)


def test_adasum_takes_one_process_rate_and_combines_in_its_own_way(adasum: Path, fleet: Fleet, tmp_path: Path) -> None:
    """Beside averaging at the same rate: the first losses agree, and what the updates make of them does not."""
    average = fleet.train(tmp_path / "average", 2, "trainers.hvd", **SAME, **ADASUM, **{"optimizer.lr": 0.1})
    found = [events(run, "train")[:6] for run in (adasum, average)]
    rates, losses = ([[event[key] for event in run] for run in found] for key in ("lr", "loss"))
    assert rates[0] == rates[1]  # two processes: half of what the rule gives to averages
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5)
    assert max(abs(a - b) / b for a, b in zip(*losses, strict=True)) > 1e-3


def test_adasum_needs_mpi_on_cpus(fleet: Fleet, tmp_path: Path) -> None:
    run = tmp_path / "run"
    codes, output = fleet.wait(fleet.start(run, 2, "trainers.hvd", **SAME, **{"horovod.op": "adasum"}))
    assert codes == [2, 2]
    assert "on CPUs Horovod has it over MPI alone; start the run with mpirun" in output
    codes, output = fleet.wait(fleet.start(run, 3, "trainers.hvd", **SAME, **{"horovod.op": "adasum"}))
    assert codes == [2, 2, 2]
    assert "horovod.op = 'adasum' on 3 processes: needs a power of two" in output


def test_a_run_that_fails_resumes_to_the_same_bits(trainer: Trainer, fleet: Fleet, tmp_path: Path) -> None:
    """Under horovodrun, which is quicker to start, and under mpirun, which ends with the first failure's code."""
    undisturbed = fleet.train(tmp_path / "calm", 2, "trainers.hvd", **SETTINGS)
    run, horovod = tmp_path / "run", {"env": {"FAULT_UNDER": "horovod"}}
    for fault in ("copied stale 0 1", "copied cuda 0 1", "reading stale 1 4", "validating cuda 0 1"):
        assert_one_fails(fleet, run, fault, **ENDLESS, **horovod)
    (run / "checkpoints" / "step-00000006").rename(tmp_path / "step-00000006")  # there are steps left
    code, output = mpirun(trainer, run, 2, "forward cuda 1 2", **SETTINGS, **ENDLESS)
    assert code == CODES["cuda"], output
    code, output = mpirun(trainer, run, 2, **SETTINGS, **ENDLESS)
    assert code == 0, output
    assert [event["step"] for event in events(run, "resume")] == [2, 4, 4]
    assert_same(run, undisturbed)
