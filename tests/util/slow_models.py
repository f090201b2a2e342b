"""Models that are slow, or hang, if the environment says so.

FAULTS is a JSON list of {"kind", "rank", "from", "to", "seconds"}: kinds are data, compute (training forwards numbered
from 1 in this process), checkpoint and validation (each time). LOSS multiplies the last rank's outputs from its fourth
forward on. Under the model `lagging` a device does each step's work in DEVICE_SECONDS, behind the host as GPUs are.
"""

import functools
import json
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from little_models import Net
from torch import Tensor, nn

from trainyard.data.loader import Batch, Loader
from trainyard.training import trainer
from trainyard.training.pace import Pace

FAULTS = json.loads(os.environ.get("FAULTS", "[]"))
RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


def suffer(kind: str, forward: int = 0) -> None:
    for fault in FAULTS:
        here = fault["kind"] == kind and fault.get("rank", RANK) == RANK
        if here and fault.get("from", 0) <= forward <= fault.get("to", 10**9):
            time.sleep(fault["seconds"])


class Slow(Net):
    """A little net with the faults of the environment."""

    forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += self.training
        suffer("compute" if self.training else "validation", self.forwards)
        out = super().forward(x)
        ill = self.forwards > 3 and int(os.environ.get("WORLD_SIZE", "1")) - 1 == RANK
        return out * float(os.environ.get("LOSS", "1")) if ill else out

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if self.forwards:
            suffer("checkpoint")
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        return state


def net(num_classes: int) -> nn.Module:
    return slowed(Slow(num_classes))


def slowed(model: Slow) -> nn.Module:
    batches = Loader.batches

    @functools.wraps(batches)
    def slowly(loader: Loader, *asked: Any) -> Iterator[Batch]:
        for batch in batches(loader, *asked):
            if model.training:
                suffer("data", model.forwards + 1)
            yield batch

    Loader.batches = slowly  # type: ignore[method-assign]
    return model


class Lagging(Slow):
    """A net on a device that begins a step's work when it has done what was asked of it before; only times are real."""

    seconds, until = float(os.environ.get("DEVICE_SECONDS", "0")), 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            Lagging.until = max(Lagging.until, time.monotonic()) + self.seconds
        return super().forward(x)


class Point(NamedTuple):
    """A point in the device's work."""

    time: float

    def query(self) -> bool:
        return time.monotonic() >= self.time

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.time - time.monotonic()))

    def elapsed_time(self, later: "Point") -> float:
        return 1000 * (later.time - self.time)


def lagging(num_classes: int) -> nn.Module:
    trainer.pace_of = lambda _: Pace(lambda: Point(max(Lagging.until, time.monotonic())))
    return slowed(Lagging(num_classes))
