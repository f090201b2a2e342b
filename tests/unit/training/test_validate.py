"""Validation, part by part."""

import torch

from trainyard.run.result import Result
from trainyard.training.validate import count_correct


def test_counting_correct_samples() -> None:
    outputs = torch.eye(7)[[0, 1, 2, 3]] * 9 + torch.arange(7.0)
    counts = count_correct(outputs, torch.tensor([0, 1, 6, 0]))
    assert counts.tolist() == [2, 3]
    result = Result(4, *counts.tolist(), loss=1.0)
    assert (result.top1, result.top5) == (50.0, 75.0)
