"""What a run trains on: both splits, the order of the training samples, and the length of the run."""

from dataclasses import dataclass
from pathlib import Path

from trainyard.config import Config
from trainyard.data.sampler import Length, Order
from trainyard.data.splits import Splits, open_splits


@dataclass(frozen=True)
class Data:
    """What is trained on, in which order, and for how long."""

    splits: Splits
    order: Order
    length: Length


def open_data(config: Config, batch: int, pin: bool, root: Path | None = None) -> Data:
    """Open the data for a global batch of `batch` samples; `root` is where `data.dir: sample` lies.

    `pin` prepares batches in pinned memory, for a GPU. Raises UserError.
    """
    splits = open_splits(config, pin, root)
    pieces = batch // config.batch.micro if config.strategy == "exact" else 0
    order = Order(len(splits.train.labels), batch, config.seed, config.augment.unit, config.augment.repeats, pieces)
    steps = config.max_steps or (config.epochs or 0) * order.steps_per_epoch
    return Data(splits, order, Length(steps, order.steps_per_epoch))
