"""What a line of metrics says, without a run."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainers import config
from trainers.parallel.single import Single
from trainers.run.recorder import Recorder
from trainers.telemetry.clock import Clock


def test_a_lines_loss_is_the_mean_over_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    telemetry = SimpleNamespace(event=lambda _, step, __, **fields: lines.append({"step": step, **fields}),
                                ranks=lambda *_: None)  # fmt: skip
    order = SimpleNamespace(samples_before=lambda step: 8 * step, epoch=lambda _: 0)
    data: Any = SimpleNamespace(order=order, length=None, splits=SimpleNamespace(class_names=["a", "b"]))
    directory: Any = SimpleNamespace(path=tmp_path)
    settings = config.build({"recipe": "demo"}, {"run": {"dir": str(tmp_path)}})
    recorder = Recorder(settings, Single(torch.device("cpu")), directory, data, Clock(time.monotonic()))
    monkeypatch.setattr(Recorder, "_reporting", telemetry)
    for step, loss in enumerate((4.0, 2.0, 3.0, 0.1), 1):
        recorder.step_done(step, torch.arange(8).numpy(), torch.tensor(loss, dtype=torch.float64))
        if step in (3, 4):
            recorder.flush(step, 0.1)
    # and the loss of a line of one step is that step's, digit by digit
    assert [(line["step"], line["samples"], line["loss"]) for line in lines] == [(3, 24, 3.0), (4, 32, 0.1)]
