"""Run directory, lease, checkpoints and publication under faults that nobody has scheduled: any call of up to three
jobs on one directory dies, fails, is done twice or loses its answer; the machine may stop and lose what is not safe.

The trainers' own code runs, in the order of training/command.py and loop.py; the training is a function of the step, so
that each bit of a checkpoint is known. At all times each checkpoint and a sealed publication are whole, nobody writes
after a newer job has the directory, and a start continues at the newest checkpoint that was reported, or refuses in
words. When the faults are over, the same job comes to the end.
"""

import functools
import hashlib
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import starting
import torch
import yaml
from calls import Clock, inline
from campaign import HERE, Fault, Process, World
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from safetensors.torch import load as from_safetensors
from schedules import CALLS, FAULTS, Schedule, damaged, long, short
from torch import nn

from trainyard import config
from trainyard.config import Config, as_tree
from trainyard.core import storage
from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.models.described import describe
from trainyard.models.weights import SUMS
from trainyard.parallel.environment import Place
from trainyard.run import checkpoint, checkpoint_manifest, checkpoint_writer, directory, lease, publishing, starts
from trainyard.run import lease_files as calls
from trainyard.run.checkpoint_writer import Writer
from trainyard.run.directory import RunDirectory
from trainyard.run.failures import explain_errors
from trainyard.run.owner import TakenOverError
from trainyard.run.recorder import rewind_all
from trainyard.run.tensor_file import Buffer, copy
from trainyard.telemetry import metrics

pytestmark = pytest.mark.takes(10)

STEPS, EVERY = 4, 2  # of a run, and by how many it is made longer once it is finished
BATCH = 8
JOBS = ("a", "b", "")
PLACE = Place(0, 1, 0, 1)
IDENTITY = {"model.num_classes": 2, "batch.global": BATCH, "seed": 1, "data.samples": 16}
# What only the holder of the lease writes, and a newer one reads
PROTECTED = ("checkpoints", "published", "summary.json", "lease.json", "config.yaml", "report.html", "previous")
FACTS = {"scaler": {}, "identity": IDENTITY, "validated": 0, "seconds": {}}
SUMMARY = {
    "model": "x", "identity": IDENTITY, "versions": {"trainyard": "0", "torch": "0", "python": "3"}, "top1": 50.0,
    "top5": 100.0, "validation_samples": 2, "world_size": 1, "strategy": "single", "precision": "fp32",
    "seconds": {}, "goodput": 1.0, "images_per_second": 1.0, "epochs": 1, "samples": 1, "finished_at": 0.0,
    "ranks": [{"device": "cpu"}], "restarts": 0, "joules": {},
}  # fmt: skip


def state(step: int) -> checkpoint.State:
    """What training has come to: a function of the step."""
    weights = torch.arange(5) * 0.37 + step
    return {"model": {"w": weights, "b": weights[:2].double() / 3}, "optimizer": {"state": {0: {"m": -weights}}}}


@functools.cache
def encoded(step: int) -> dict[str, str]:
    """The hashes of a checkpoint's files."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, tree in state(step).items():
            buffer = Buffer()
            copy(buffer.fit(tree))
            found[f"{name}.safetensors"] = str(buffer.write(Path(folder) / name)["sha256"])
    return found


@functools.cache
def settings_of(path: Path, resume: str, steps: int) -> Config:
    run = {"dir": str(path), "max_restarts": 1000}
    return config.build({"recipe": "demo", "run": run}, {"resume": resume, "max_steps": steps, "epochs": None})


class Runs:
    """Jobs on one run directory, and what is known of it."""

    def __init__(self, world: World, checks: Counter[str]) -> None:
        self.world, self.checks, self.path = world, checks, world.root / "run"
        self.steps = STEPS  # that the next start is to come to
        self.reported = 0  # the newest checkpoint that was reported, and not damaged since
        self.had = False  # one was reported since the last new beginning
        self.damaged: set[str] = set()
        self.leases: dict[Process, lease.Lease] = {}
        self.resumes: dict[Process, str] = {}  # what `resume` says
        self.newest = 0  # lease whose holder has fenced the others off
        world.changed = self.changed

    def train(self, resume: str) -> str:
        """A start of a job, as training/command.py has it: how it ended."""
        settings = settings_of(self.path, resume, self.steps)
        try:
            if message := starting.over_already(settings, BATCH):
                self.check_published("a finished run")
                return message.partition(":")[0].rpartition(" ")[2]
            with explain_errors(starting.attempt(settings, PLACE, BATCH)):
                starting.count(settings)
                return self.run(settings)
        except (UserError, ExitError) as error:
            ended = error
        code = Exit.CONFIG if isinstance(ended, UserError) else ended.code
        assert str(ended), "no words"
        assert code != Exit.CRASHED, ended
        return f"{type(ended).__name__} {int(code)}: {ended}"

    def run(self, settings: Config) -> str:
        """Resume, train, publish."""
        place = starting.run_directory(settings)
        self.leases[process()] = place.lease
        self.resumes[process()] = settings.resume
        found = place.start(IDENTITY)
        done = self.resumed(found, place)
        with place.fenced():
            rewind_all(self.path, done, 0, place.staging)
        events = metrics.MetricsFile(self.path / "metrics.jsonl", place.lease.seems_held)
        events.write({"event": "resume" if found else "start", "step": done})
        writer = Writer(place.checkpoints, 2, 1, ours=place.held, holder=place.holder, staging=place.staging)
        last = max(done, settings.max_steps or 0)
        for step in range(done + 1, last + 1):
            refuse(place.lost(), place)
            events.write({"event": "train", "step": step, "loss": 1.0})
            if step % EVERY == 0:
                refuse(not place.held(), place)
                writer.submit(step, state(step), FACTS)
                writer.wait()
                while writer.published:
                    self.report(writer.published.popleft(), events)
                with place.fenced():
                    checkpoint.score(place.checkpoints, step, 50.0 - step % 7, place.staging)
        refuse(not place.held(), place)
        self.publish(settings, place, last)
        place.release()
        events.close()
        self.steps = max(self.steps, last + STEPS)
        return "finished"

    def resumed(self, found: checkpoint.Found | None, place: RunDirectory) -> int:
        """The step at which a start continues: the newest checkpoint that was reported, or a newer one, bit by bit."""
        self.checks["resumed"] += 1
        overtaken = place.lease.number < self.newest  # it looked before, and ends before it writes
        if found is None:
            assert overtaken or not self.had, f"began at step 0, and step {self.reported} was reported"
            return 0
        assert overtaken or found.step >= self.reported, f"resumed at {found.step} of {self.reported}"
        with place.fenced():
            wanted, loaded = state(found.step), found.load()
        assert {key: found.meta[key] for key in FACTS} == FACTS
        assert torch.equal(loaded["model"]["w"], wanted["model"]["w"])
        assert torch.equal(loaded["model"]["b"], wanted["model"]["b"])
        assert torch.equal(loaded["optimizer"]["state"][0]["m"], wanted["optimizer"]["state"][0]["m"])
        return found.step

    def report(self, step: int, events: metrics.MetricsFile) -> None:
        """A checkpoint is reported as whole and safe."""
        if self.leases[process()].number == self.newest:  # else a newer job may have moved it aside
            self.reported, self.had = step, True
        events.write({"event": "checkpoint", "step": step})

    def took(self, take: Callable[..., list[str]], held: lease.Lease, checkpoints: Path) -> list[str]:
        """As `Lease.take`, after which no older job counts; one that begins anew moves aside what is there."""
        messages = take(held, checkpoints)
        self.newest = max(self.newest, held.number)
        if self.resumes[process()] == "never" and not held.continued:
            self.reported, self.had = 0, False
        return messages

    def publish(self, settings: Config, place: RunDirectory, step: int) -> None:
        """What training/loop.py does at the end."""
        tree = as_tree(settings)
        summary = {
            **SUMMARY, "status": "finished", "steps": step, "length": starting.length_of(settings),
            "config": tree,
        }  # fmt: skip
        with place.fenced():
            publishing.publish(
                self.path / "published", MODEL, state(step)["model"],
                found=describe(settings, ["a", "b"], ["A", "B"]), summary=summary, staging=place.staging,
            )  # fmt: skip
            storage.storage.write_file(self.path / "report.html", b"<html>", via=place.staging)
            storage.storage.write_json(self.path / "summary.json", summary, via=place.staging)

    def changed(self, process: Process, call: str, path: str) -> None:
        """A process has changed something: what is protected is written by the newest holder alone."""
        parts = Path(path).relative_to(self.world.root).parts
        if parts[0] != "run" or len(parts) < 2 or parts[1] not in PROTECTED or call in ("mkdir", "rmdir"):
            return
        if parts[1] == "previous" and call == "write":
            return  # to the metrics of its own run, which it still has open
        self.checks["one writer"] += 1
        number = self.leases[process].number if process in self.leases else 0
        assert number >= self.newest, f"lease {number} wrote after {self.newest} had the directory: {call} {path}"

    def check(self) -> None:
        """What holds at all times: a checkpoint under its name is whole, so is a sealed publication."""
        folder = self.path / "checkpoints"
        for path in checkpoint.steps(folder) if folder.is_dir() else []:
            if path.name in self.damaged:
                continue
            self.checks["checkpoint"] += 1
            found = json.loads((path / "manifest.json").read_bytes())
            step = int(path.name[5:])
            assert checkpoint_manifest.add_checksum(found) == found, path
            assert found["step"] == step
            for name, digest in encoded(step).items():
                assert hashlib.sha256((path / name).read_bytes()).hexdigest() == digest, path / name
        if (self.path / "published" / SUMS).exists():
            self.check_published("sealed")

    def check_published(self, when: str) -> None:
        """Each file that the publication names is there, with its content."""
        here, HERE.process = HERE.process, None
        self.checks["publication"] += 1
        folder = self.path / "published"
        for line in (folder / SUMS).read_text().splitlines():
            digest, name = line.split("  ")
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, (when, name)
        weights = from_safetensors((folder / "model.safetensors").read_bytes())
        wanted = state(int(weights["w"][0]))["model"]  # of whichever step
        assert all(torch.equal(weights[name], value) for name, value in wanted.items())
        HERE.process = here

    def damage(self, chance: random.Random) -> str:
        """Damage a file of a checkpoint."""
        folder = self.path / "checkpoints"
        saved = [path for path in checkpoint.steps(folder) if path.name not in self.damaged] if folder.is_dir() else []
        if not saved:
            return ""
        path = chance.choice(saved)
        self.damaged.add(path.name)
        left = [int(path.name[5:]) for path in saved if path.name not in self.damaged]
        self.reported = min(self.reported, max(left, default=0))
        return damaged(path / chance.choice(["manifest.json", "model.safetensors", "optimizer.safetensors"]), chance)


MODEL = nn.Linear(2, 2)


def refuse(lost: bool, place: RunDirectory) -> None:
    """End, where the lease is lost."""
    if lost:
        raise TakenOverError(place.lease.taken_message())


def process() -> Process:
    assert HERE.process is not None
    return HERE.process


class Campaign(Schedule):
    """Schedules of jobs on a run directory."""

    total: ClassVar[Counter[str]] = Counter()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        self.runs = Runs(self.world, self.checks)
        for module in (storage, starts, directory, lease, checkpoint_writer):
            patch.setattr(module, "time", Clock(self.world))
        # in C: the settings, which each start writes twice, would be a sixth of what this costs
        patch.setattr(yaml, "safe_dump", functools.partial(yaml.dump, Dumper=yaml.CSafeDumper))
        patch.setattr(calls, "now", lambda: self.world.time)
        patch.setattr(calls, "sleep", self.world.sleep)
        patch.setattr(checkpoint_writer, "threading", inline())
        take = lease.Lease.take
        patch.setattr(lease.Lease, "take", lambda this, checkpoints: self.runs.took(take, this, checkpoints))
        patch.setattr(lease.Lease, "_show_alive", lambda this: setattr(process(), "heart", this.held))

    @precondition(lambda self: self.few())
    @rule(
        job=st.sampled_from(JOBS), resume=st.sampled_from(["auto"] * 6 + ["never"]),
        faults=st.lists(FAULTS, max_size=4), beats=st.booleans(), now=CALLS,
    )  # fmt: skip
    def start(self, job: str, resume: str, faults: list[Fault], beats: bool, now: int) -> None:
        self.add(lambda: self.runs.train(resume), job, faults, beats, now)

    def check(self) -> None:
        self.runs.check()

    def damage_one(self, chance: random.Random) -> str:
        return self.runs.damage(chance)

    def heal(self) -> None:
        """The job that came last comes to the end, or says that the run's checkpoints were damaged."""
        job = self.world.processes[-1].job if self.world.processes else "a"
        last = self.add(lambda: self.runs.train("auto"), job, [], True, 1_000_000)
        if last.outcome == "finished":
            self.runs.check_published("the end")
        else:
            assert self.runs.damaged, last.outcome
            assert "this run had one" in last.outcome, last.outcome


def test_a_short_campaign() -> None:
    total = short(Campaign, 30)
    assert total["check: resumed"] > 60
    assert total["end: TakenOverError 2"] > 2


@pytest.mark.soak
def test_a_long_campaign(record_property: Callable[[str, object], None]) -> None:
    long(Campaign, record_property, "run directory, lease, checkpoints, publication")
