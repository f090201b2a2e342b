"""Nothing waits for the device but where it must: neither a step nor a validation reads a tensor's value.

Reading a value (`.item()`, `.tolist()`, `bool(tensor)`) and a shape that depends on values (a mask as an index) make
the host wait for a GPU. Every such operation is seen on a processor, too.
"""

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard import config, parallel
from trainyard.config import Config
from trainyard.parallel.environment import Place
from trainyard.training import loop
from trainyard.training.pace import AHEAD, Pace
from trainyard.training.trainer import Trainer, build
from trainyard.training.validate import Tally

READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::unique")


class NoReads(TorchDispatchMode):
    """Refuses operations that a device would be waited for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        masks = any(
            part is not None and part.dtype == torch.bool for part in (args[1] if name == "aten::index" else ())
        )
        if name.startswith(READS) or masks:
            raise AssertionError(f"waits for the device: {name}")
        return func(*args, **(kwargs or {}))


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


class Device:
    """A device that does nothing until it is waited for: whoever runs ahead of it runs ahead without bound."""

    def __init__(self) -> None:
        self.asked: deque[int] = deque()
        self.most = self.points = 0

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
