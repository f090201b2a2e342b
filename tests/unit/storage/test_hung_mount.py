"""A mount whose server does not answer: the run names file and mount, and ends as far as the kernel lets it."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Trainer, constants, ranks_of
from netfs import NetworkFolder, net

from tests import patience
from trainyard.pod.process import hangs_while_ending

__all__ = ["net"]
pytestmark = [pytest.mark.root, pytest.mark.takes(40), pytest.mark.ranks(2)]

HANG = 3.0  # seconds, on a machine that is not busy: of two ranks one that stands still for so long is a hang
LEAST = 8.0  # seconds for which any process of a machine that seems not to be busy may stand still


def started(
    trainer: Trainer, run: Path, seen: Path, processes: int = 1, env: dict[str, str] | None = None, **over: Any
) -> "subprocess.Popen[str]":
    """A run that writes with each step; `seen` is where its directory can be looked at."""
    run.parent.mkdir(exist_ok=True)
    seconds = max(LEAST, HANG * min(10.0, patience.slowness()))
    over = {"comm.hang_seconds": seconds, "checkpoint.every_steps": 0, "epochs": 1000, **over}
    env = {"STEP_SECONDS": "0.05", "TRAINYARD_GRACE_SECONDS": "2", **(env or {})}
    process = trainer.start(run, processes, env, **over)
    steps = seen / "samples" / f"rank-{processes - 1}.jsonl"

    def trains() -> bool:
        assert process.poll() is None, process.communicate()[0]
        return steps.exists() and len(steps.read_bytes().splitlines()) > 10

    patience.wait("the run does not train", trains, lambda: patience.processor_seconds(process.pid))
    return process


def said(process: "subprocess.Popen[str]", text: str) -> str:
    """The line with a text, as soon as the process prints it."""
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if text in line:
            return line
    raise AssertionError("".join(printed))


def test_the_file_and_its_mount_are_named_while_they_hang(trainer: Trainer, net: NetworkFolder) -> None:
    process = started(trainer, net.path / "alone/run", net.brick / "alone/run")
    with net.stopped():
        line = said(process, "its storage hangs")
        assert f"{net.path / 'alone' / 'run'}/" in line
        assert f"on the mount {net.path} (fuse, faulty)" in line
        assert "See the claim's server and the node's mount" in line
        # FUSE: it has ended, but for threads that wait in the kernel
        patience.wait("the process goes on", lambda: hangs_while_ending(process.pid), patience.still)
        assert process.poll() is None
    patience.communicate(process)
    assert process.returncode == 138


def test_a_dataset_that_hangs_is_named(trainer: Trainer, net: NetworkFolder, tmp_path: Path) -> None:
    shutil.copytree(trainer.data, net.brick / "data")
    run = tmp_path / "run"
    slow_disk = constants({"telemetry.watchdog.LAST_SECONDS": patience.IDLE})  # under the run directory
    process = started(trainer, run, run, env=slow_disk, **{"data.dir": str(net.path / "data")})
    with net.stopped():
        line = said(process, "its storage hangs")
        # the run is in an epoch or in the validation after it
        file = rf"{re.escape(str(net.path))}/data/(train|val)/shard-00000\.tar"
        assert re.search(rf"{file} on the mount {re.escape(str(net.path))} \(fuse, faulty\)", line), line
        # the run's own storage answers, so the hang is on record
        patience.wait("no hang.json", (run / "hang.json").exists, patience.still)
    patience.communicate(process)
    assert process.returncode == 138


def test_the_launcher_ends_although_its_processes_cannot(trainer: Trainer, net: NetworkFolder) -> None:
    process = started(trainer, net.path / "launched/run", net.brick / "launched/run", 2)
    ranks = ranks_of(process)
    with net.stopped():
        code = patience.wait("the launcher does not end", process.poll, patience.still)
        assert code == 138
        assert any(hangs_while_ending(pid) for pid in ranks)
    output, _ = patience.communicate(process)
    assert "its storage hangs" in output
    assert "a thread of it waits in the kernel for storage that does not answer" in output
