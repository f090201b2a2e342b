"""Nothing waits for the device but where it must: neither a step nor a validation reads a tensor's value.

Reading a value (`.item()`, `.tolist()`, `bool(tensor)`) and a shape that depends on values (a mask as an index) make
the host wait for a GPU. Every such operation is seen on a processor, too.
"""

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from reading import NoReads
from torch.nn.parallel import DistributedDataParallel

from trainyard import config, parallel
from trainyard.config import Config, RunPlan
from trainyard.core.exits import ExitError
from trainyard.parallel.ddp import Ddp
from trainyard.parallel.environment import Place
from trainyard.parallel.fsdp import Fsdp
from trainyard.parallel.process_group import Group
from trainyard.parallel.sharding import is_sharded
from trainyard.telemetry.metrics import read_events
from trainyard.training import loop
from trainyard.training.pace import AHEAD, Pace
from trainyard.training.trainer import Trainer, build
from trainyard.training.validate import Tally


def built(folder: Path, **over: Any) -> Trainer:
    base: dict[str, Any] = {
        "run": {"dir": str(folder / "run")}, "max_steps": 4, "batch": {"global": 12, "micro": 4}, "device": "cpu",
        "data": {"dir": "synthetic", "synthetic_samples": 48, "image_size": 16, "workers": 1},
        "model": {"name": "little_models:net", "num_classes": 10}, "ema": {"decay": 0.9}, "validate": {"batch": 2},
        "augment": {"mixup": 0.2, "cutmix": 1.0}, "optimizer": {"clip_norm": 1.0}, "wandb": {"mode": "off"},
    }  # fmt: skip
    settings: Config = config.build(base, over)
    plan = config.make_plan(settings, "ddp", 1)
    trainer = build(settings, plan, parallel.connect(settings, plan, Place()))
    trainer.records.watchdog.close()
    return trainer


def test_a_read_is_noticed() -> None:
    value = torch.ones(3)
    for read in (lambda: value.sum().item(), lambda: value[value > 0], lambda: bool(value.any()), value.nonzero):
        with pytest.raises(AssertionError, match="waits for the device"), NoReads():
            read()


@pytest.mark.parametrize("over", [{}, {"precision": "bf16"}, {"optimizer": {"name": "adamw", "momentum": 0.9}},
                                  {"model": {"checkpointing": True, "name": "little_models:blocks"}}])  # fmt: skip
def test_a_step_reads_nothing(tmp_path: Path, over: dict[str, Any]) -> None:
    trainer = built(tmp_path, **over)
    batches = trainer.data.splits.train.batches(loop.list_jobs(trainer))
    for _ in range(2):
        batch = next(batches)
        with NoReads():
            loop.train_step(trainer, batch)
        trainer.progress.step += 1
    batches.close()  # type: ignore[attr-defined]
    trainer.records.recorder.close()


def group_of_one(settings: Config, plan: RunPlan, place: Place) -> Group:
    """The strategy that several processes would have."""
    cpu = torch.device("cpu")
    if plan.strategy == "ddp":
        return Ddp(place, cpu, settings.comm, settings.ddp)
    return Fsdp(place, cpu, settings.comm, settings.fsdp, precision=settings.precision, compile_options={})


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within a test, DDP and FSDP have a group of this process alone, where a run takes `single`; on the CPU."""
    joining = functools.partial(dist.init_process_group, store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(dist, "init_process_group", joining)
    monkeypatch.setattr(parallel, "connect", group_of_one)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("precision", "optimizer"),
    [("bf16", {}), ("fp16", {}), ("fp16", {"name": "lamb", "lr": 0.01}), ("fp16", {"name": "adamw", "lr": 0.01})],
    ids=["bf16, sgd", "fp16, sgd", "fp16, lamb", "fp16, adamw"],
)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_step_of_a_group_reads_nothing_either(
    tmp_path: Path, kind: str, precision: str, optimizer: dict[str, Any]
) -> None:
    """Whether fp16's gradients are finite is summed over the group, and read by no host."""
    over = {"strategy": kind, "precision": precision, "device": "auto", "optimizer": {"clip_norm": 1.0, **optimizer}}
    trainer = built(tmp_path, **over)
    parameters = list(trainer.learner.plain.parameters())
    assert all(is_sharded(parameter) == (kind == "fsdp") for parameter in parameters)
    assert isinstance(trainer.learner.model, DistributedDataParallel) == (kind == "ddp")
    batches = trainer.data.splits.train.batches(loop.list_jobs(trainer))
    for _ in range(2):
        batch = next(batches)
        with NoReads():
            loop.train_step(trainer, batch)
        trainer.progress.step += 1
    batches.close()  # type: ignore[attr-defined]
    trainer.records.recorder.close()


class Device:
    """A device that does nothing until it is waited for: whoever runs ahead of it runs ahead without bound."""

    def __init__(self) -> None:
        self.asked: deque[int] = deque()
        self.most = self.points = self.idle = 0

    def record(self) -> Any:
        self.points += 1
        self.asked.append(self.points)
        self.most = max(self.most, len(self.asked))
        return Point(self, self.points)


class Point:
    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number

    def query(self) -> bool:
        return self.number not in self.device.asked

    def synchronize(self) -> None:
        while self.number in self.device.asked:
            self.device.asked.popleft()
        self.device.idle += not self.device.asked

    def elapsed_time(self, later: "Point") -> float:
        return 0.0


def test_a_validation_reads_its_counts_once_and_runs_two_batches_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    trainer = replace(built(tmp_path), pace=Pace(device.record))
    samples = len(trainer.data.splits.val.labels)
    trainer.progress.step = 4
    rounds, add = [], Tally.add

    def added(self: Tally, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        with NoReads():
            add(self, outputs, labels)
        rounds.append(len(device.asked))

    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # in which reads of values can be seen
    monkeypatch.setattr(Tally, "add", added)
    predict = type(trainer.learner).predict

    def predicted(self: Any, pictures: torch.Tensor) -> torch.Tensor:
        with NoReads():
            return predict(self, pictures)

    monkeypatch.setattr(type(trainer.learner), "predict", predicted)
    result = loop.validate(trainer)
    assert result.samples == samples
    assert len(rounds) == -(-samples // 2)
    assert max(rounds[AHEAD:]) == min(rounds[AHEAD:]) == AHEAD, "always two batches in work, never more"
    assert device.most == AHEAD + 1
    trainer.records.recorder.close()


def lines(trainer: Trainer) -> list[tuple[int, float]]:
    """Step and loss of the lines of metrics that are written."""
    path = trainer.records.directory.path / "metrics.jsonl"
    return [(event["step"], event["loss"]) for event in read_events(path) if event["event"] == "train"]


def stepped(trainer: Trainer, steps: int) -> Iterator[int]:
    """Do the steps of a run, one by one, as the loop does."""
    batches = trainer.data.splits.train.batches(loop.list_jobs(trainer))
    trainer.learner.model.train()
    for step in range(1, steps + 1):
        loop.next_step(trainer, batches)
        yield step
    batches.close()  # type: ignore[attr-defined]


LINES: dict[str, Any] = {
    "max_steps": 9, "log": {"every_steps": 2}, "checkpoint": {"every_steps": 0}, "comm": {"hang_seconds": 0.0},
}  # fmt: skip


def test_a_device_that_lags_never_runs_dry_for_a_line_of_metrics(tmp_path: Path) -> None:
    """A line is written when the next one is due; at the end all are there, with the losses of a run without a lag."""
    calm = built(tmp_path / "calm", **LINES)
    loop.resume(calm)
    assert list(stepped(calm, 9)) == list(range(1, 10))
    assert [step for step, _ in lines(calm)] == [2, 4, 6, 8, 9]

    device = Device()
    trainer = replace(built(tmp_path / "lags", **LINES), pace=Pace(device.record))
    loop.resume(trainer)
    seen = []
    for step in stepped(trainer, 9):
        seen.append(len(lines(trainer)))
        assert (device.idle > 0) == (step == 9), "the device had nothing to do"
    assert seen == [0, 0, 0, 1, 1, 2, 2, 3, 5]
    assert lines(trainer) == lines(calm)
    for one in (calm, trainer):
        one.records.recorder.close()


def test_a_loss_that_is_ill_is_found_late_but_before_it_is_saved(tmp_path: Path) -> None:
    over = {**LINES, "checkpoint": {"every_steps": 5}, "model": {"name": "little_models:nan", "num_classes": 10}}
    over |= {"batch": {"global": 12, "micro": 0}}
    device = Device()
    trainer = replace(built(tmp_path, **over), pace=Pace(device.record))
    loop.resume(trainer)
    done: list[int] = []
    with pytest.raises(ExitError, match=r"the loss of step 4 is nan") as caught:
        done.extend(stepped(trainer, 9))
    assert caught.value.code == 77
    assert done == [1, 2, 3, 4], "found at the checkpoint of step 5"
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))
    trainer.records.recorder.close()


def test_lines_that_are_begun_are_written_before_a_validation(tmp_path: Path) -> None:
    device = Device()
    trainer = replace(built(tmp_path, **LINES), pace=Pace(device.record))
    loop.resume(trainer)
    for step in stepped(trainer, 5):
        if step == 5:
            break
    assert [step for step, _ in lines(trainer)] == [2]
    loop.validate(trainer)
    assert [step for step, _ in lines(trainer)] == [2, 4]
    trainer.records.recorder.close()
