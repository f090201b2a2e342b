"""The two splits of a run, as loaders: prepared shards, the sample set, generated images, or the user's dataset."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainyard.config.sections.data import AugmentSettings, DataSettings
from trainyard.config.sections.learning import ModelSettings
from trainyard.core.exits import UserError
from trainyard.data import decode, transforms, user
from trainyard.data.loader import Loader, Read
from trainyard.data.sampler import Length, Order
from trainyard.data.synthetic import Synthetic
from trainyard.data.transforms import Make
from trainyard.parallel import cores
from trainyard.shards import reader

log = logging.getLogger("trainyard")


@dataclass(frozen=True)
class Splits:
    """Training and validation data; `decoder` describes what decodes their images."""

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
class Data:
    """The data of a run, its order, and the length of the run."""

    splits: Splits
    order: Order
    length: Length


@dataclass(frozen=True)
class Stored:
    """One split as it is stored: how its samples are read, their labels, and their names in messages."""

    read: Read
    labels: NDArray[np.int64]
    name: Callable[[int], str]
    options: dict[str, Any] = field(default_factory=dict)  # for the loader


def open_splits(
    data: DataSettings,
    augment: AugmentSettings,
    model: ModelSettings,
    seed: int,
    *,
    local_world: int,
    pin: bool,
    root: Path | None = None,
) -> Splits:
    """Open both splits of the dataset that `data.dir` or `data.dataset` names; `root` is where `sample` lies.

    `local_world` processes share this node's cores. `pin` prepares batches as a GPU wants them: in pinned memory, and
    in its memory format. Raises UserError.
    """
    if data.dir == "synthetic" and not data.dataset:
        return _synthetic(data, model, local_world, pin)
    stored = _user(data.dataset, model.num_classes) if data.dataset else _shards(root or Path(data.dir))
    train, val, keys, names = stored
    _check_classes(model.num_classes, len(names), data.dataset or data.dir)
    options = _loader_options(data, model, local_world, pin)
    decoder = decode.choose(data.decoder)
    return Splits(
        _loader(train, transforms.training(data, augment, seed, decoder), data.image_size, options),
        _loader(val, transforms.validation(data, augment, decoder), data.val_sizes[0], options),
        names,
        decoder.description,
        keys,
    )


def _shards(root: Path) -> tuple[Stored, Stored, list[str], list[str]]:
    shards = reader.open_splits(root, ("train", "val"))
    train, val = (Stored(s.read_together, s.labels, s.name, {"neighbours": s.neighbours}) for s in shards.values())
    return train, val, shards["train"].class_keys, shards["train"].class_names


def _user(name: str, classes: int) -> tuple[Stored, Stored, list[str], list[str]]:
    halves = [user.open_dataset(name, split, classes) for split in ("train", "val")]
    if halves[0].class_names != halves[1].class_names:
        raise UserError(f"data.dataset = {name!r}: train and val have different `classes`; they must be the same")
    train, val = (Stored(half.read, half.labels, half.name) for half in halves)
    return train, val, halves[0].class_names, halves[0].class_names


def _synthetic(data: DataSettings, model: ModelSettings, local_world: int, pin: bool) -> Splits:
    last = model.in_channels_last(pin)
    names = [f"class {index}" for index in range(model.num_classes or 1000)]
    sizes = (data.synthetic_samples, data.image_size), (max(1, data.synthetic_samples // 5), data.val_sizes[0])
    options = {**_loader_options(data, model, local_world, pin), "readahead": 0}  # nothing is read

    def made(content: Tensor, sample: int, draw: int, out: Tensor) -> Tensor:
        return content[:, : out.size(1), : out.size(2)]

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
    """Make an image; an error reports its sample."""
    try:
        return make(content, sample, draw, out)
    except UserError as error:
        raise UserError(f"{name(sample)}: {error}") from error


def _loader_options(data: DataSettings, model: ModelSettings, local_world: int, pin: bool) -> dict[str, Any]:
    return {
        "workers": data.threads(on_gpu=pin) or _cores(local_world), "prefetch": data.prefetch, "readers": data.readers,
        "readahead": data.readahead, "pin": pin, "channels_last": model.in_channels_last(pin),
    }  # fmt: skip


def _cores(local_world: int) -> int:
    """Return the threads of `data.workers: 0`: this process's share of the cores that it may use."""
    count = cores.share(local_world)
    log.info("data.workers: 0 is %d threads here: %d processes share this node's cores", count, local_world)
    return count


def _check_classes(wanted: int, found: int, where: str) -> None:
    if wanted not in (0, found):
        raise UserError(
            f"model.num_classes = {wanted}: the data in {where} has {found} classes; set it to {found}, or to 0 to "
            "take it from the data"
        )
