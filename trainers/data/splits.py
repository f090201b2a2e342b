"""The two splits of a run, as loaders: prepared shards, the sample set, or generated pictures."""

from dataclasses import dataclass
from pathlib import Path

from trainers.data import transforms
from trainers.data.loader import Loader
from trainers.data.shards import open_split
from trainers.data.synthetic import Synthetic
from trainers.exits import UserError
from trainers.settings import Config


@dataclass(frozen=True)
class Splits:
    """Training and validation data."""

    train: Loader
    val: Loader
    classes: int
    class_names: list[str]


def open_splits(config: Config, pin: bool) -> Splits:
    """Open both splits of the dataset that `data.dir` names."""
    if config.data.dir == "synthetic":
        return _synthetic(config, pin)
    root = sample_set() if config.data.dir == "sample" else Path(config.data.dir)
    train, val = open_split(root, "train"), open_split(root, "val")
    _check_classes(config, train.classes)
    data, seed = config.data, config.seed
    val_size = data.val_image_size or data.image_size
    shorter = data.val_resize or round(val_size * 8 / 7)
    if shorter < val_size:
        raise UserError(
            f"data.val_resize = {shorter}: smaller than the {val_size} pixels cut out of it; "
            f"set it to {val_size} or more"
        )
    return Splits(
        Loader(
            lambda sample, epoch: transforms.training_picture(
                transforms.decode(train.read(sample)),
                data.image_size,
                config.augment,
                transforms.random_numbers(seed, epoch, sample),
            ),
            train.labels, data.image_size, data.workers, data.prefetch, pin,
        ),
        Loader(
            lambda sample, _: transforms.validation_picture(transforms.decode(val.read(sample)), val_size, shorter),
            val.labels, val_size, data.workers, data.prefetch, pin,
        ),
        train.classes,
        train.class_names,
    )  # fmt: skip


def sample_set() -> Path:
    """The folder of the sample set, prepared on first use."""
    from trainers.prepare.sample import ensure_sample

    return ensure_sample()


def _check_classes(config: Config, classes: int) -> None:
    if config.model.num_classes not in (0, classes):
        raise UserError(
            f"model.num_classes = {config.model.num_classes}: the data in {config.data.dir} has {classes} classes; set "
            f"it to {classes}, or to 0 to take it from the data"
        )


def _synthetic(config: Config, pin: bool) -> Splits:
    data = config.data
    classes = config.model.num_classes or 1000
    val_size = data.val_image_size or data.image_size
    train = Synthetic(data.synthetic_samples, classes, data.image_size)
    val = Synthetic(max(1, data.synthetic_samples // 5), classes, val_size)
    return Splits(
        Loader(lambda i, _: train.picture(i), train.labels, data.image_size, data.workers, data.prefetch, pin),
        Loader(lambda i, _: val.picture(i), val.labels, val_size, data.workers, data.prefetch, pin),
        classes,
        [f"class {index}" for index in range(classes)],
    )
