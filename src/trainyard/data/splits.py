"""The two splits of a run, as loaders: prepared shards, the sample set, generated pictures, or the user's dataset."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainyard.config import Config
from trainyard.core.exits import UserError
from trainyard.data import decode, transforms, user
from trainyard.data.loader import Loader, Read
from trainyard.data.synthetic import Synthetic
from trainyard.data.transforms import Make
from trainyard.parallel import cores, environment
from trainyard.shards.reader import open_split

log = logging.getLogger("trainyard")


@dataclass(frozen=True)
class Splits:
    """Training and validation data; `decoder` describes what decodes their pictures."""

    train: Loader
    val: Loader
    class_names: list[str]  # for people
    decoder: str
    class_keys: list[str]  # as the dataset's archive names them

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


@dataclass(frozen=True)
class Stored:
    """One split as it is stored: how its samples are read, their labels, and their names in messages."""

    read: Read
    labels: NDArray[np.int64]
    name: Callable[[int], str]
    options: dict[str, Any] = field(default_factory=dict)  # for the loader


def open_splits(config: Config, pin: bool, root: Path | None = None) -> Splits:
    """Open both splits of the dataset that `data.dir` or `data.dataset` names; `root` is where `sample` lies.

    `pin` prepares batches as a GPU wants them: in pinned memory, and in its memory format. Raises UserError.
    """
    if config.data.dir == "synthetic" and not config.data.dataset:
        return _synthetic(config, pin)
    stored = _user(config) if config.data.dataset else _shards(root or Path(config.data.dir))
    train, val, keys, names = stored
    _check_classes(config.model.num_classes, len(names), config.data.dataset or config.data.dir)
    decoder = decode.choose(config.data.decoder)
    options = _loader_options(config, pin)
    return Splits(
        _loader(train, transforms.training(config, decoder), config.data.image_size, options),
        _loader(val, transforms.validation(config, decoder), config.data.val_sizes[0], options),
        names,
        decoder.description,
        keys,
    )


def _shards(root: Path) -> tuple[Stored, Stored, list[str], list[str]]:
    shards = [open_split(root, split) for split in ("train", "val")]
    train, val = (Stored(s.read_together, s.labels, s.name, {"neighbours": s.neighbours}) for s in shards)
    return train, val, shards[0].class_keys, shards[0].class_names


def _user(config: Config) -> tuple[Stored, Stored, list[str], list[str]]:
    name = config.data.dataset
    halves = [user.open_dataset(name, split, config.model.num_classes) for split in ("train", "val")]
    if halves[0].class_names != halves[1].class_names:
        raise UserError(f"data.dataset = {name!r}: train and val have different `classes`; they must be the same")
    train, val = (Stored(half.read, half.labels, half.name) for half in halves)
    return train, val, halves[0].class_names, halves[0].class_names


def _synthetic(config: Config, pin: bool) -> Splits:
    data, last = config.data, config.model.in_channels_last(pin)
    names = [f"class {index}" for index in range(config.model.num_classes or 1000)]
    sizes = (data.synthetic_samples, data.image_size), (max(1, data.synthetic_samples // 5), data.val_sizes[0])
    options = {**_loader_options(config, pin), "readahead": 0}  # nothing is read

    def made(content: Tensor, sample: int, draw: int, out: Tensor) -> Tensor:
        return content

    train, val = (
        Loader(half.read, made, half.labels, size, **options)
        for size, half in ((size, Synthetic(samples, len(names), size, last)) for samples, size in sizes)
    )
    return Splits(train, val, names, "nothing: they are generated", names)


def _loader(stored: Stored, make: Make, size: int, options: dict[str, Any]) -> Loader:
    return Loader(stored.read, partial(_naming, make, stored.name), stored.labels, size, **stored.options, **options)


def _naming(  # noqa: PLR0917
    make: Make, name: Callable[[int], str], content: Any, sample: int, draw: int, out: Tensor
) -> Tensor:
    """Make a picture; an error names its sample."""
    try:
        return make(content, sample, draw, out)
    except UserError as error:
        raise UserError(f"{name(sample)}: {error}") from error


def _loader_options(config: Config, pin: bool) -> dict[str, Any]:
    data = config.data
    return {
        "workers": data.workers or _cores(config), "prefetch": data.prefetch, "readers": data.readers,
        "readahead": data.readahead, "pin": pin, "channels_last": config.model.in_channels_last(pin),
    }  # fmt: skip


def _cores(config: Config) -> int:
    """The threads of `data.workers: 0`: this process's share of the cores that it may use."""
    place = environment.under_mpi() if config.strategy == "horovod" else environment.under_torchrun()
    count = cores.share(place.local_world)
    log.info("data.workers: 0 is %d threads here: %d processes share this node's cores", count, place.local_world)
    return count


def _check_classes(wanted: int, found: int, where: str) -> None:
    if wanted not in (0, found):
        raise UserError(
            f"model.num_classes = {wanted}: the data in {where} has {found} classes; set it to {found}, or to 0 to "
            "take it from the data"
        )
