"""Models that are slow, or hang, if the environment says so.

FAULTS is a JSON list of {"kind", "rank", "from", "to", "seconds"}: kinds are data, compute (training forwards numbered
from 1 in this process), checkpoint and validation (each time). LOSS multiplies the last rank's outputs from its fourth
forward on.
"""

import functools
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from little_models import Net
from torch import Tensor, nn

from trainers.data.loader import Batch, Loader

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
    model, batches = Slow(num_classes), Loader.batches

    @functools.wraps(batches)
    def slowly(loader: Loader, jobs: Any) -> Iterator[Batch]:
        for batch in batches(loader, jobs):
            if model.training:
                suffer("data", model.forwards + 1)
            yield batch

    Loader.batches = slowly  # type: ignore[method-assign]
    return model
