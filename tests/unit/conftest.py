"""A little prepared dataset, and real runs of the trainers as processes."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleet import ROOT, Fleet, environment
from forked import Forker, shared
from PIL import Image

from tests import patience
from tests.unit.prepare.fixtures import archive, prepared
from trainyard.prepare.sample import ensure_sample, synset

__all__ = ["archive", "environment", "prepared"]

HERE = Path(__file__).parent
CLASSES, TRAIN, VAL = 4, 58, 1003  # a global batch of 8 leaves 2 samples: on 3 and 4 processes some get none


def picture(label: int, number: int) -> bytes:
    """A small JPEG whose colour tells its class, under noise."""
    generator = np.random.Generator(np.random.Philox(key=[label, number]))
    base = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [160, 160, 40]])[label]
    pixels = (base + generator.integers(-55, 55, (18, 20, 3))).clip(0, 255).astype(np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset of real JPEGs."""
    from trainyard.prepare.build import build
    from trainyard.prepare.settings import parse

    folder = tmp_path_factory.mktemp("data")
    with zipfile.ZipFile(folder / "little.zip", "w") as archive:
        for split, count in (("train", TRAIN), ("val", VAL)):
            for number in range(count):
                label = number % CLASSES
                name = f"{split}/class{label}/{number:05d}.jpg"
                archive.writestr(name, picture(label, number + (10_000 if split == "val" else 0)))
    source = {"kind": "path", "path": str(folder / "little.zip")}
    build(parse({"source": source, "out": str(folder / "little"), "layout": "imagefolder", "workers": 1}))
    return folder / "little"


@dataclass
class Trainer:
    """Starts trainers with settings that all tests of a folder share."""

    data: Path
    forker: Forker
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def settings(self, run: Path, **over: Any) -> dict[str, Any]:
        base: dict[str, Any] = {
            "run.dir": str(run), "data.dir": str(self.data), "data.image_size": 16, "data.val_resize": 18,
            "data.workers": 1, "model.name": "little_models:net", "batch.global": 8, "epochs": 2,
            "augment.crop": "random_resized", "augment.scale": [0.5, 1.0], "precision": "fp64",
            "model.batch_norm": "global", "schedule.warmup_epochs": 1, "log.every_steps": 1, "device": "cpu",
            "checkpoint.every_steps": 4, "debug.record_samples": True, "comm.timeout_seconds": round(patience.IDLE),
            "comm.hang_seconds": 600,  # by default a run that a test holds at a step for a minute would be ended
        }  # fmt: skip
        return {**base, **over}

    def start(
        self,
        run: Path,
        processes: int = 1,
        env: dict[str, str] | None = None,
        module: str = "trainers.ddp",
        forked: bool = True,
        *,
        stdout: Any = subprocess.PIPE,
        **over: Any,
    ) -> subprocess.Popen[str]:
        """Start a run through the launcher, or as one plain process; not `forked`, all import what they need."""
        launched = processes > 1 or "PET_NNODES" in (env or {})
        launcher = ["-m", "trainyard", "launch", "--nproc-per-node", str(processes)] if launched else []
        options = [f"--set={key}={json.dumps(value)}" for key, value in self.settings(run, **over).items()]
        (run.parent / "base.yaml").write_text("{}\n")
        return self.python(
            *launcher, "-m", module, "--config", str(run.parent / "base.yaml"), *options,
            env=env, stdout=stdout, forked=forked,
        )  # fmt: skip

    def python(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        stdout: Any = subprocess.PIPE,
        forked: bool = True,
        cwd: Path = ROOT,
    ) -> subprocess.Popen[str]:
        """Start `python WORDS`, which run a module, in a session of its own."""
        process = (self.forker.popen if forked else subprocess.Popen)(
            [sys.executable, *words], cwd=cwd, env=environment(env), text=True, stdout=stdout,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.running.append(process)
        return process

    def run(self, run: Path, processes: int = 1, env: dict[str, str] | None = None, **over: Any) -> tuple[int, str]:
        """Run to the end: exit code and output."""
        process = self.start(run, processes, env, **over)
        output, _ = patience.communicate(process)
        return process.returncode, output

    def train(self, run: Path, processes: int = 1, **over: Any) -> Path:
        """Run to the end, which must succeed."""
        code, output = self.run(run, processes, **over)
        assert code == 0, output
        return run


@pytest.fixture(scope="session")
def forker() -> Forker:
    """Starts processes that need not import torch."""
    return shared()


@pytest.fixture(scope="session")
def session_trainer(data: Path, forker: Forker) -> Iterator[Trainer]:
    """Starts trainers; whatever is still running at the end is ended."""
    trainer = Trainer(data, forker)
    yield trainer
    for process in trainer.running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def trainer(session_trainer: Trainer) -> Trainer:
    return session_trainer


@pytest.fixture(scope="session")
def fashion_run(session_trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a ResNet-18 on the sample set's real pictures, published in every format."""
    over: dict[str, Any] = {
        "data.dir": "sample", "data.image_size": 32, "data.val_resize": 36, "model.name": "torchvision:resnet18",
        "model.batch_norm": "local", "precision": "fp32", "epochs": None, "max_steps": 3, "batch.global": 64,
        "optimizer.lr": 0.03, "schedule.warmup_epochs": 0, "publish.export": ["torch", "onnx"],
        "debug.record_samples": False,
    }  # fmt: skip
    made = common_folder(tmp_path_factory) / "fashion"
    with made.with_suffix(".lock").open("a") as lock:  # one worker trains, each has a copy of its own
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "summary.json").exists():
            shutil.rmtree(made, ignore_errors=True)
            session_trainer.train(made, **over)
    return shutil.copytree(made, tmp_path_factory.mktemp("fashion") / "fashion", symlinks=True)


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of this run of pytest share."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "common"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def fashion_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 30 pictures of the sample set in each of the folders named by its classes in the archive."""
    folder = tmp_path_factory.mktemp("pictures") / "pictures"
    with zipfile.ZipFile(ensure_sample().parent / "fashion.zip") as archive:
        names = [name for name in archive.namelist() if "/train/" in name]
        for label in range(10):
            of_class = [name for name in names if f"/{synset(label)}/" in name]
            for name in of_class[:30]:
                path = folder / synset(label) / Path(name).name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
    return folder


@pytest.fixture(scope="session")
def fleet(session_trainer: Trainer) -> Fleet:
    """Runs whose ranks no launcher starts."""
    return Fleet(session_trainer)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """The events of a kind, from metrics.jsonl."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    parsed = [json.loads(line) for line in lines if line.endswith("}\n")]  # the last one may be half written
    return [event for event in parsed if event["event"] == kind]


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Wait until a run has done so many steps."""
    tried, since = (0.0, 0.0), time.monotonic()
    while True:
        ended = process.poll() is not None  # before the look: between the two it may do the step, and end
        if any(event["step"] >= step for event in events(run, "train")):
            return
        assert not ended, process.communicate()[0]
        if time.monotonic() - since > patience.IDLE:
            before, tried, since = tried, patience.effort(process.pid), time.monotonic()
            assert patience.has_tried(before, tried), "the run makes no progress"
        time.sleep(0.02)


def hold(folder: Path, *places: str) -> dict[str, str]:
    """Environment of a run that waits at these places (little_models) until their files are removed from a folder."""
    folder.mkdir(exist_ok=True)
    for place in places:
        (folder / place).touch()
    return {"HOLD": str(folder)}


def constants(values: dict[str, float]) -> dict[str, str]:
    """Environment of a run for which constants of trainyard's modules have other values (little_models)."""
    return {"CONSTANTS": json.dumps(values)}


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of a launcher's ranks."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if is_rank(Path("/proc", pid))]


def is_rank(process: Path) -> bool:
    """Whether a process, which may end meanwhile, is a rank; one that is forked has its name alone."""
    try:
        return (
            b"trainers.ddp" in (process / "cmdline").read_bytes() or (process / "comm").read_text() == "trainers.ddp\n"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False
