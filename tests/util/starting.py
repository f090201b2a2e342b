"""The steps of a start, from whole settings, of which training/command.py and trainer.py pass on the sections."""

import math

from trainyard.config import Config, as_tree, fingerprint
from trainyard.data.splits import Splits, open_splits
from trainyard.parallel.environment import Place
from trainyard.run import directory, input_files, starts
from trainyard.run.directory import RunDirectory
from trainyard.run.failures import Attempt


def length_of(settings: Config) -> dict[str, int | None]:
    return directory.requested_length(settings.epochs, settings.max_steps)


def over_already(settings: Config, batch: int) -> str | None:
    classes = settings.model.num_classes or None
    wanted = directory.identity(settings.model, settings.optimizer, settings.seed, batch=batch, classes=classes)
    return directory.check_ended(
        settings.run, settings.resume, fingerprint=fingerprint(settings), wanted=wanted, length=length_of(settings),
        read=input_files.paths(settings.run, settings.resume, settings.data, settings.model),
    )  # fmt: skip


def count(settings: Config) -> None:
    starts.count(settings.run, fingerprint(settings))


def run_directory(settings: Config) -> RunDirectory:
    return RunDirectory(settings.run, settings.resume, as_tree(settings))


def attempt(settings: Config, place: Place, batch: int) -> Attempt:
    share = math.ceil(batch / place.world)
    micro, validated = settings.batch.micro, settings.validate_.batch
    read = input_files.paths(settings.run, settings.resume, settings.data, settings.model)
    return Attempt(settings.run, fingerprint(settings), place, share, micro, validated, settings.data, read)


def opened(settings: Config, pin: bool = False, local_world: int = 1) -> Splits:
    return open_splits(settings.data, settings.augment, settings.model, settings.seed, local_world=local_world, pin=pin)
