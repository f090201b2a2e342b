"""The two splits of a run, as loaders: prepared shards, the sample set, generated pictures, or the user's dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from trainers.config import Config
from trainers.data import decode, transforms, user
from trainers.data.loader import Loader, Make
from trainers.data.synthetic import Synthetic
from trainers.exits import UserError
from trainers.shards.reader import Shards, open_split


@dataclass(frozen=True)
class Splits:
    """Training and validation data; `decoder` says what decodes their pictures, the same on all processes."""

    train: Loader
    val: Loader
    classes: int
    class_names: list[str]
    decoder: str


def open_splits(config: Config, pin: bool, root: Path | None = None) -> Splits:
    """Open both splits of the dataset that `data.dir` or `data.dataset` names; `root` is where `sample` lies."""
    options = {
        "workers": config.data.workers, "prefetch": config.data.prefetch, "readers": config.data.readers,
        "readahead": config.data.readahead, "pin": pin, "channels_last": config.model.channels_last,
    }  # fmt: skip
    if config.data.dataset:
        return _user(config, options)
    if config.data.dir == "synthetic":
        return _synthetic(config, {**options, "readahead": 0})
    root = root or Path(config.data.dir)
    train, val = open_split(root, "train"), open_split(root, "val")
    _check_classes(config, train.classes, config.data.dir)
    decoder = decode.choose(config.data.decoder)
    return Splits(
        _of_shards(train, training(config, decoder, train.name), config.data.image_size, options),
        _of_shards(val, validation(config, decoder, val.name), config.data.val_sizes[0], options),
        train.classes,
        train.class_names,
        decoder.description,
    )


def training(config: Config, decoder: decode.Decoder, name: Callable[[int], str]) -> Make:
    """Make training pictures; `name` tells people which sample could not be made."""

    def make(content: Any, sample: int, draw: int) -> Tensor:
        numbers = transforms.random_numbers(config.seed, draw, sample)
        picture = decode.as_picture(content, decoder)
        return transforms.training_picture(picture, config.data.image_size, config.augment, numbers, config.data.mean)

    return partial(_naming, make, name)


def validation(config: Config, decoder: decode.Decoder, name: Callable[[int], str]) -> Make:
    """Make validation pictures: the shorter side resized, the centre cut out."""
    size, shorter = config.data.val_sizes

    def make(content: Any, sample: int, draw: int) -> Tensor:
        return decode.centre(decode.as_picture(content, decoder), size, shorter, config.augment.interpolation)

    return partial(_naming, make, name)


def _naming(make: Make, name: Callable[[int], str], content: Any, sample: int, draw: int) -> Tensor:
    try:
        return make(content, sample, draw)
    except UserError as error:
        raise UserError(f"{name(sample)}: {error}") from error


def _check_classes(config: Config, classes: int, where: str) -> None:
    if config.model.num_classes not in (0, classes):
        raise UserError(
            f"model.num_classes = {config.model.num_classes}: the data in {where} has {classes} classes; set it to "
            f"{classes}, or to 0 to take it from the data"
        )


def _of_shards(shards: Shards, make: Make, size: int, options: dict[str, Any]) -> Loader:
    return Loader(shards.read_together, make, shards.labels, size, neighbours=shards.neighbours, **options)


def _user(config: Config, options: dict[str, Any]) -> Splits:
    name = config.data.dataset
    train, val = (user.open_dataset(name, split, config.model.num_classes) for split in ("train", "val"))
    if train.class_names != val.class_names:
        raise UserError(f"data.dataset = {name!r}: train and val have different `classes`; they must be the same")
    _check_classes(config, len(train.class_names), name)
    decoder = decode.choose(config.data.decoder)
    return Splits(
        Loader(train.read, training(config, decoder, train.name), train.labels, config.data.image_size, **options),
        Loader(val.read, validation(config, decoder, val.name), val.labels, config.data.val_sizes[0], **options),
        len(train.class_names),
        train.class_names,
        decoder.description,
    )


def _synthetic(config: Config, options: dict[str, Any]) -> Splits:
    data, last = config.data, config.model.channels_last
    classes = config.model.num_classes or 1000
    val_size = config.data.val_sizes[0]
    train = Synthetic(data.synthetic_samples, classes, data.image_size, last)
    val = Synthetic(max(1, data.synthetic_samples // 5), classes, val_size, last)
    return Splits(
        Loader(
            lambda ids: [None] * len(ids), lambda _, i, __: train.picture(i), train.labels, data.image_size, **options
        ),
        Loader(lambda ids: [None] * len(ids), lambda _, i, __: val.picture(i), val.labels, val_size, **options),
        classes,
        [f"class {index}" for index in range(classes)],
        "nothing: they are generated",
    )
