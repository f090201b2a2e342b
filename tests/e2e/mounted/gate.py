"""A small model whose training a test holds at a step: a machine that is slow to look must not find a run at its end.

Pods find this module in a ConfigMap. GATE names a file on the results claim with the number of steps that may be made;
while it is not there, GATE_STEPS may. Without GATE nothing is held.
"""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn


def allowed() -> float:
    """Return how many steps may be made."""
    if "GATE" not in os.environ:
        return float("inf")
    try:
        return float(Path(os.environ["GATE"]).read_text())
    except FileNotFoundError:
        return float(os.environ.get("GATE_STEPS", "inf"))


class Net(nn.Module):
    """Two convolutions with BatchNorm; it counts the steps that it has been trained, and the count is saved with it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Linear(16, num_classes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, classes) of pictures (batch, 3, height, width)."""
        if self.training:
            while self.steps.item() >= allowed():
                time.sleep(0.1)
            self.steps += 1
        out: Tensor = self.fc(self.body(x))
        return out
