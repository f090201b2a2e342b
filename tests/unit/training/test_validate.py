"""Validation, part by part."""

from pathlib import Path

import pytest
import torch
from conftest import Trainer, events
from torch import nn

from trainyard import report
from trainyard.models.batch_norm import BatchNorm, share_of_start
from trainyard.run.result import Result
from trainyard.training.validate import count_correct


def test_counting_correct_samples() -> None:
    outputs = torch.eye(7)[[0, 1, 2, 3]] * 9 + torch.arange(7.0)
    counts = count_correct(outputs, torch.tensor([0, 1, 6, 0]))
    assert counts.tolist() == [2, 3]
    result = Result(4, *counts.tolist(), loss=1.0)
    assert (result.top1, result.top5) == (50.0, 75.0)


def test_the_share_of_batch_norms_first_values_is_known() -> None:
    slow, fast = nn.BatchNorm2d(3, momentum=0.1), BatchNorm.like(nn.BatchNorm2d(3, momentum=0.5), None)
    model = nn.Sequential(fast, slow, nn.BatchNorm2d(3, momentum=None), nn.BatchNorm2d(3, track_running_stats=False))
    assert share_of_start(model) == 1.0
    for _ in range(5):
        model(torch.randn(4, 3, 2, 2) + 7)
    model.eval()(torch.randn(4, 3, 2, 2))
    assert share_of_start(model) == pytest.approx(0.9**5)
    # of what it began with, mean 0 and variance 1: the mean is that share too low
    assert slow.running_mean is not None
    assert slow.running_mean.mean() < 7 * (1 - 0.9**5) + 1
    assert share_of_start(nn.Sequential(fast)) == pytest.approx(0.5**5)
    assert share_of_start(nn.Linear(2, 2)) == 0.0


def test_a_validation_before_batch_norm_is_warm_is_explained(trainer: Trainer, tmp_path: Path) -> None:
    over = {"epochs": 6, "model.batch_norm": "local", "validate.every_epochs": 1}
    code, output = trainer.run(tmp_path / "run", **over)
    assert code == 0, output
    shares = [event.get("batch_norm_start") for event in events(tmp_path / "run", "validate")]
    assert shares == [round(0.9 ** (8 * epoch), 4) for epoch in (1, 2, 3, 4, 5)] + [None]  # 48 steps are enough
    assert (
        output.count("BatchNorm's averages still hold 43 % of their first values after 8 steps: this validation") == 1
    )
    assert output.count("BatchNorm's averages still hold") == 5
    page = report.render(tmp_path / "run")
    assert "After epoch 1, 2, 3, 4, 5 BatchNorm&#x27;s averages still held some of their first values" in page
    weights = tmp_path / "run" / "published" / "model.pth"
    code, output = trainer.run(tmp_path / "tuned", **{**over, "model.pretrained": str(weights)})
    assert code == 0, output
    assert "BatchNorm's averages" not in output, "pretrained ones began with others"
