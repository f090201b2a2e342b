"""The trainers' own loader, as benchmarks take batches from it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard import config
from trainyard.data.loader import Batch, Loader
from trainyard.data.sampler import Order
from trainyard.data.splits import open_splits


def open_loader(folder: Path, batch: int, augment: Mapping[str, Any], **data: Any) -> Loader:
    """Return the training split's loader of a prepared dataset, for global batches of so many pictures."""
    settings = {"epochs": 1, "batch": {"global": batch}, "model": {"channels_last": True}, "augment": augment}
    built = config.build({**settings, "data": {"dir": str(folder), **data}})
    return open_splits(built.data, built.augment, built.model, built.seed, local_world=1, pin=False).train


def batches(loader: Loader, batch: int) -> Iterator[Batch]:
    """Batches in the order that training would take, without end."""
    order = Order(len(loader.labels), batch, 1)
    return loader.batches((order.epoch(step), order.slice(step, 0, 1)) for step in range(10**6))
