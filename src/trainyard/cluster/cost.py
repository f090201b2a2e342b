"""Say what a run takes before it starts: hours, GPU hours and money, each figure with its source.

trainyard cost --recipe resnet50-90 --images imagenet --gpus 16 --published A100 --price 2
trainyard cost -f values.yaml --data build/imagenet --measured runs/first --price 2
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trainyard import config
from trainyard.config import estimate, layers
from trainyard.config.estimate import CostWork, Expected, Rate
from trainyard.config.settings import Config
from trainyard.core.exits import UserError, printable
from trainyard.core.files import value_at
from trainyard.core.storage import storage
from trainyard.shards import manifest as manifests

OPERATORS = ("pytorchjob", "mpijob", "trainjob")


class Figure(NamedTuple):
    """A line of the answer; `value` is a number in `unit`."""

    name: str
    value: float
    unit: str
    source: str


class EarlierRun(NamedTuple):
    """The figures of a finished run that apply to another one."""

    rate: Rate
    world: int
    validates: float | None  # images per second in validation over those in training
    rest: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; end 2 where something is missing that they need."""
    options = _parser().parse_args(arguments)
    try:
        settings, gpus, spare = read_run(options)
        figures = answer(options, settings, gpus, spare)
    except UserError as error:
        print(printable(f"cost: {error}"), file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({one.name: one._asdict() for one in figures}, indent=2))
    else:
        print(show(f"{settings.model.name} on {gpus} GPU{'s' if gpus > 1 else ''}", figures))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainyard cost", description=(__doc__ or "").splitlines()[0])
    config.add_options(parser)
    add = parser.add_argument
    add("-f", "--values", type=Path, action="append", default=[], metavar="FILE",
        help="values of the chart, with recipe, settings, nodes and GPUs; may be repeated, as for helm")  # fmt: skip
    add("--images", default="", metavar="N", help="images to train on, or `imagenet`: 1,281,167 and 50,000")
    add("--val-images", type=int, default=0, metavar="N", help="images to validate on")
    add("--data", type=Path, metavar="FOLDER", help="a prepared dataset, whose images are counted")
    add("--gpus", type=int, default=0, metavar="N", help="GPUs in all; default: nodes times gpusPerNode of the values")
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument(
        "--rate", type=float, default=0.0, metavar="N", help="images per second of each GPU, in training"
    )
    rates.add_argument("--measured", type=Path, metavar="RUN",
                       help="take the rate of a run of the same model: its directory, or its summary.json")  # fmt: skip
    rates.add_argument("--published", choices=tuple(estimate.PUBLISHED), default="",
                       help="take a published rate of resnet50 at 224 pixels")  # fmt: skip
    add("--scaling", type=float, default=1.0, metavar="SHARE",
        help="share of the rate that is left on so many GPUs; default: 1, all of it")  # fmt: skip
    add(
        "--price", type=float, default=0.0, metavar="N", help="price of a GPU hour; default: cost.price of the settings"
    )
    add("--currency", default="", metavar="NAME", help="currency of the price; default: cost.currency of the settings")
    add("--json", action="store_true", help="print the figures as JSON")
    return parser


# ---------------------------------------------------------------------------------------------- what is asked for


def read_run(options: argparse.Namespace) -> tuple[Config, int, int]:
    """Return the run's settings, the number of GPUs that train, and that of spare pods; raises UserError."""
    values: dict[str, Any] = {}
    for path in options.values:
        values = layers.overlay(values, config.read_file(path))
    operator = operator_of(values)
    training = training_of(values, operator)
    named = [{"recipe": training["recipe"]}] if training.get("recipe") else []
    flags = [{"recipe": options.recipe}] if options.recipe else []
    somewhere = {"data": {"dir": "/data"}}  # the chart sets it, and nothing here reads it
    layered = [somewhere, *named, training.get("config", {}), *flags, *layers.read_options(options)]
    if not any("recipe" in one for one in layered) and not any("model" in one for one in layered):
        raise UserError(
            f"no settings: give -f VALUES, --config FILE or --recipe NAME ({', '.join(config.recipe_names())})"
        )
    each = training.get("gpusPerNode") or training.get("processesPerNode") or 1
    gpus = options.gpus or int(training.get("nodes", 1)) * int(each)
    if gpus < 1:
        raise UserError(f"--gpus {gpus}: at least one GPU is needed")
    return config.build(*layered), gpus, spare_nodes(values, operator) * int(each)


def operator_of(values: dict[str, Any]) -> str:
    """Return the kind of job that trains with values of the chart."""
    asked: str = value_at(values, "global", "training", "operator") or next(
        (name for name in OPERATORS[1:] if value_at(values, name, "enabled")), OPERATORS[0]
    )
    return asked


def training_of(values: dict[str, Any], operator: str) -> dict[str, Any]:
    """Return what values of the chart say of training: the shared part, and over it that of the job that trains."""
    shared, own = (value_at(values, part, "training") or {} for part in ("global", operator))
    training: dict[str, Any] = layers.overlay(shared, own)
    return training


def spare_nodes(values: dict[str, Any], operator: str) -> int:
    """Return how many pods wait for one that trains to be lost."""
    own = values.get(operator) or {}
    if operator != "pytorchjob":
        return int(own.get("spares") or 0)
    return int(value_at(own, "elastic", "spares") or 0) if own.get("form") == "elastic" else 0


def count_images(options: argparse.Namespace) -> tuple[int, int, str]:
    """Images to train and to validate on, and where the numbers are from; raises UserError."""
    if options.data:
        splits = manifests.load(options.data).splits
        return splits["train"].samples, splits["val"].samples if "val" in splits else 0, f"{options.data}'s manifest"
    if options.images == "imagenet":
        return *estimate.IMAGENET, "ILSVRC 2012"
    count = options.images.replace(",", "").replace("_", "")
    if not count.isdecimal() or not int(count):
        raise UserError(
            "the number of images is not known: give --images N (or imagenet), or --data of a prepared dataset"
        )
    return int(count), options.val_images, "--images"


def read_earlier_run(path: Path, settings: Config) -> EarlierRun:
    """Return what a run tells of its rate; raises UserError where it is of another model or size."""
    file = path / "summary.json" if path.is_dir() else path
    found = storage.read_json(file)
    if not found.get("images_per_second") or not found.get("world_size"):
        raise UserError(f"--measured {path}: {file} holds no rate; give the directory of a run that has ended")
    before = found.get("config", {})
    theirs = before.get("model", {}).get("name"), before.get("data", {}).get("image_size")
    if theirs != (ours := (settings.model.name, settings.data.image_size)):
        raise UserError(
            f"--measured {path} trained {theirs[0]} at {theirs[1]} pixels, and this run trains {ours[0]} at {ours[1]}: "
            "give a run of the same, or --rate"
        )
    world, seconds = int(found["world_size"]), found.get("seconds", {})
    rate = float(found["images_per_second"]) / world
    every = before.get("validate", {}).get("every_epochs") or found.get("epochs") or 1
    validated = int(found.get("validation_samples") or 0) * max(1, int(found.get("epochs") or 0) // every)
    per_second = validated / seconds["validation"] if validated and seconds.get("validation") else 0.0
    return EarlierRun(
        Rate(rate, f"{path}: {found['images_per_second']:,.0f} on {world}"), world,
        per_second / (rate * world) if per_second else None,
        sum(float(seconds.get(cause, 0.0)) for cause in ("init", "publish")),
    )  # fmt: skip


def rate_of(options: argparse.Namespace, settings: Config) -> Rate:
    """Return the rate that was given, or a published one; raises UserError where it is of another model, or missing."""
    if options.rate > 0:
        return Rate(options.rate, "--rate")
    if options.published:
        if settings.model.name not in estimate.PUBLISHED_MODELS or settings.data.image_size != estimate.PUBLISHED_SIZE:
            raise UserError(
                f"--published is for resnet50 at {estimate.PUBLISHED_SIZE} pixels, and this run trains "
                f"{settings.model.name} at {settings.data.image_size}: give --rate or --measured"
            )
        return estimate.PUBLISHED[options.published]
    if settings.cost.rate:
        return Rate(settings.cost.rate, settings.cost.source or "cost.rate of the settings")
    raise UserError(
        "images per second of a GPU are not known: give --measured RUN, --rate N, or --published "
        f"({', '.join(estimate.PUBLISHED)})"
    )


# ---------------------------------------------------------------------------------------------- the answer


def answer(options: argparse.Namespace, settings: Config, gpus: int, spare: int) -> list[Figure]:
    """All figures of the answer; raises UserError."""
    train, val, where = count_images(options)
    batch = config.resolve_global_batch(settings, gpus)
    work = estimate.work_of(settings, train, val, batch)
    known = read_earlier_run(options.measured, settings) if options.measured else None
    rate = known.rate if known else rate_of(options, settings)
    faster = known.validates if known and known.validates else estimate.VALIDATES
    seconds = estimate.expect(
        work, gpus, rate.images * options.scaling, validates=faster, rest=known.rest if known else estimate.REST
    )
    expected = replace(seconds, spare=spare)
    price = options.price or settings.cost.price
    currency = options.currency or settings.cost.currency
    length = f"{settings.epochs} epochs" if settings.epochs else f"{settings.max_steps} steps"
    return [
        *_of_work(work, f"{length} of {train:,} ({where}), batches of {batch:,}", f"{work.validations} times {val:,}"),
        *_of_rate(rate, options.scaling, known.world if known else 0, gpus),
        *_of_time(expected, known, faster),
        *([Figure("money", expected.gpu_hours * price, currency, f"{price:g} {currency} a GPU hour")] if price else []),
    ]


def _of_work(work: CostWork, trained: str, validated: str) -> list[Figure]:
    return [
        Figure("training images", work.trained, "images", trained),
        Figure("validation images", work.validated, "images", validated),
    ]


def _of_rate(rate: Rate, scaling: float, world: int, gpus: int) -> list[Figure]:
    alike = "measured on as many" if world == gpus else "assumed: nothing is lost on more GPUs"
    return [
        Figure("rate of a GPU", rate.images, "images/s", rate.source),
        Figure("scaling", scaling, "of it", "--scaling" if scaling != 1.0 else alike),
    ]


def _of_time(expected: Expected, known: EarlierRun | None, faster: float) -> list[Figure]:
    measured_too = known is not None and known.validates is not None
    return [
        Figure("training", expected.training, "s", "images over rate"),
        Figure("validation", expected.validation, "s",
               f"{faster:.3g} times training's rate, {'measured' if measured_too else 'assumed'}"),
        Figure("start and end", expected.rest, "s", "measured" if known else "assumed"),
        Figure("time", expected.total, "s", "the sum; without a wait for nodes, interruptions or preparation"),
        Figure("GPU hours", expected.gpu_hours, "h",
               f"time on {expected.gpus} GPUs" + (f", and {expected.spare} of spare pods" if expected.spare else "")),
    ]  # fmt: skip


def show(title: str, figures: list[Figure]) -> str:
    """Lay the figures out for people, a line each, with its source."""
    rows = [(one.name, format_figure(one), one.source) for one in figures]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"  {name:<{wide[0]}}  {value:>{wide[1]}}   {source}" for name, value, source in rows]
    return printable("\n".join([title, *lines]))


def format_figure(one: Figure) -> str:
    """Return a figure as people say it: seconds as minutes or hours."""
    if one.unit != "s":
        return f"{one.value:,.{0 if one.unit.startswith('image') else 2}f} {one.unit}"
    minutes = one.value / 60
    if minutes < 1:
        return f"{one.value:.0f} s"
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:,.1f} h"
