"""Models small enough to train in a test, some of them with faults.

HOLD names a folder. While a file in it is named N, a process waits with its training forward N + 1; while one is named
N-of-W, so it does in a world of W processes; SIGTERM lets it go on. N-always holds it after SIGTERM too.
CONSTANTS is a JSON object of other values for constants of trainyard, such as "run.fence.PAUSE".
"""

import importlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HOLD, WORLD = os.environ.get("HOLD", ""), os.environ.get("WORLD_SIZE", "1")
TOLD: list[Any] = []
for place, value in json.loads(os.environ.get("CONSTANTS", "{}")).items():
    module, _, constant = place.rpartition(".")
    setattr(importlib.import_module(f"trainyard.{module}"), constant, value)


def hold(done: int) -> None:
    """Wait while the forward after so many is held, but not after SIGTERM, except where the place is `N-always`."""
    if not done:
        stop: Any = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *given: (TOLD.append(given), stop(*given)))
    places = [Path(HOLD) / name for name in (f"{done}", f"{done}-of-{WORLD}")]
    always = Path(HOLD) / f"{done}-always"
    while always.exists() or (not TOLD and any(place.exists() for place in places)):
        time.sleep(0.01)


class Net(nn.Module):
    """Two convolutions with BatchNorm."""

    begun = 0

    def __init__(self, num_classes: int, norm: bool = True) -> None:
        super().__init__()
        time.sleep(float(os.environ.get("START_SECONDS", "0")))
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8) if norm else nn.GroupNorm(2, 8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16) if norm else nn.GroupNorm(2, 16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
            if HOLD:
                hold(self.begun)
                self.begun += 1
        out: Tensor = self.fc(self.body(x))
        return out


class NanNet(Net):
    """Its loss is NaN from the fourth step on."""

    steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training
        out = super().forward(x)
        return out * float("nan") if self.steps > 3 else out


class CrashNet(Net):
    """A fault in the user's own code, on one rank."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and os.environ.get("RANK", "0") == os.environ.get("CRASH_RANK", "0"):
            raise ValueError("the model has a fault")
        return super().forward(x)


def vit(num_classes: int, image_size: int) -> nn.Module:
    """torchvision's transformer, with patches of 32 pixels."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(image_size, 32, 1, 2, 16, 32, num_classes=num_classes)


def net(num_classes: int) -> nn.Module:
    return Net(num_classes)


def refuse_none(module: nn.Module, given: tuple[Tensor, ...]) -> None:
    """What flash attention does on a GPU, and `x.view(x.size(0), -1)` anywhere."""
    if not len(given[0]):
        raise RuntimeError("batch size must be positive")


def strict(num_classes: int) -> nn.Module:
    """The net, which refuses a batch without samples."""
    model = Net(num_classes)
    model.body.register_forward_pre_hook(refuse_none)
    return model


def strict_blocks(num_classes: int) -> nn.Module:
    """The blocks, which refuse a batch without samples."""
    model = Blocks(num_classes)
    model.stages.register_forward_pre_hook(refuse_none)
    return model


def groups(num_classes: int) -> nn.Module:
    return Net(num_classes, norm=False)


def dropout(num_classes: int) -> nn.Module:
    return nn.Sequential(Net(32, norm=False), nn.Dropout(0.5), nn.Linear(32, num_classes))


def nan(num_classes: int) -> nn.Module:
    return NanNet(num_classes)


def crash(num_classes: int) -> nn.Module:
    return CrashNet(num_classes)


def sized(num_classes: int, image_size: int) -> nn.Module:
    model = Net(num_classes)
    model.image_size = image_size  # type: ignore[assignment]
    return model


def not_a_model(num_classes: int) -> Tensor:
    return torch.zeros(num_classes)


class ForkedNet(Net):
    """Its way depends on its input in inference, which no exporter can follow."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if self.training or out.sum() > 0 else out.clone()


def forked(num_classes: int) -> nn.Module:
    return ForkedNet(num_classes)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width) if norm else nn.GroupNorm(2, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


class Blocks(nn.Module):
    """Three blocks that are alike, between a stem and a head."""

    def __init__(self, num_classes: int, norm: bool = True, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2)
        self.stages = nn.Sequential(Block(width, norm), nn.Sequential(Block(width, norm), Block(width, norm)))
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.stages(self.stem(x)).mean((2, 3)))
        return out


def blocks(num_classes: int) -> nn.Module:
    return Blocks(num_classes)


def least(num_classes: int) -> nn.Module:
    """For torch.compile, which takes seconds for each kernel."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(64, num_classes))


def memory(what: str) -> int:
    """A line of this process's status, such as VmHWM, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))
