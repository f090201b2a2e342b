"""Shared by `evaluate` and `predict`: options, the processes, the model on its device, and the pass over all images."""

import argparse
import errno
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainyard import config, parallel
from trainyard.config.sections.running import CommSettings, DdpSettings
from trainyard.core.exits import UserError, cause_of, explain_permissions, printable
from trainyard.core.storage import storage
from trainyard.inference import forward
from trainyard.inference.forward import Outcome, Work
from trainyard.inference.inputs import Images, open_images
from trainyard.inference.model import Trained, open_trained
from trainyard.inference.wait_for_model import wait_for_model
from trainyard.models.described import rebuild
from trainyard.parallel.base import Strategy
from trainyard.parallel.device import choose_device
from trainyard.parallel.environment import Place
from trainyard.run.directory import requested_length

PRECISIONS = ("fp64", "fp32", "bf16", "fp16")
Labels = Callable[[Images, Trained], NDArray[np.int64] | None]


@dataclass(frozen=True)
class Done:
    """The model, the images, and the outcome; on every process."""

    trained: Trained
    images: Images
    labels: NDArray[np.int64] | None
    outcome: Outcome
    precision: str


def parser(name: str, description: str, out: str) -> argparse.ArgumentParser:
    """Return the options that both programs have."""
    options = argparse.ArgumentParser(prog=name, description=description)
    add = options.add_argument
    add("--model", type=Path, required=True, metavar="PATH", help="run directory, checkpoint's folder, or published/")
    add("--data", required=True, metavar="PATH",
        help="folder of images, a zip, a prepared dataset, or `sample` (the sample set)")  # fmt: skip
    add("--split", choices=("train", "val"), default="",
        help="where the data has splits; without it val, or all images of a folder without splits")  # fmt: skip
    add("--out", type=Path, default=Path(out), metavar="DIR", help="where files are written (%(default)s)")
    add("--batch", type=_natural, default=0, metavar="N", help="images per forward; default: as the run's validation")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda when there is one")
    add("--precision", choices=PRECISIONS, default="", help="default: as the run's")
    add("--image-size", type=_natural, default=0, metavar="PIXELS",
        help="height and width of what the model sees; default: as the run's validation")  # fmt: skip
    add("--workers", type=_natural, default=0, metavar="N", help="decoding threads per process; default: its cores")
    add("--wait", type=_natural, default=0, metavar="SECONDS",
        help="wait so long at most for a run that has not published its model yet")  # fmt: skip
    add("--run-config", type=Path, metavar="FILE",
        help="with --wait: settings of the run, whose length the published model must have")  # fmt: skip
    return options


def go(options: argparse.Namespace, what: str, top: int, label: Labels) -> tuple[Strategy, Done]:
    """Run the model over the images that the options name; every process calls it. Raises UserError."""
    place = parallel.locate("ddp")
    if place.rank == 0:
        ready_to_write(options.out)
    if options.wait:
        settings = config.build(config.read_file(options.run_config)) if options.run_config else None
        length = requested_length(settings.epochs, settings.max_steps) if settings else None
        say = (lambda text: print(f"{what}: {text}", flush=True)) if place.rank == 0 else (lambda _: None)
        wait_for_model(options.model, options.wait, length, say)
    trained = with_image_size(open_trained(options.model), options.image_size)
    known = {*trained.found.keys, *trained.found.names}
    images = open_images(options.data, options.split, known)
    labels = label(images, trained)
    strategy = connect(choose_device(options.device, place), place)
    precision = options.precision or trained.found.precision
    if precision == "fp16" and strategy.device.type == "cpu":
        precision = "fp32"  # CPUs have no fast fp16; the outputs are nearer to the weights' own
    model = on_device(trained, precision, strategy.device)
    work = Work(options.batch or trained.found.batch, precision, top, options.workers, what)
    if strategy.is_rank0:
        processes = f"{strategy.world} processes" if strategy.world > 1 else "1 process"
        print(f"{what}: {trained.found.model} of {trained.origin}", flush=True)
        print(f"{what}: {images.count:,} images, {images.where}; {processes}, {strategy.device.type}, {precision}")
        for remark in images.remarks:
            print(f"{what}: {printable(remark)}", flush=True)
    try:
        outcome = forward.run(model, trained.found, images, labels, strategy=strategy, work=work)
    except RuntimeError as error:
        if not options.image_size or not may_be_the_size(error):
            raise
        raise UserError(f"--image-size {options.image_size}: {trained.found.model} cannot take it ({error})") from error
    return strategy, Done(trained, images, labels, outcome, precision)


def may_be_the_size(error: RuntimeError) -> bool:
    """Whether a model's error may come from the size of its images: a lost peer or a failed GPU has other causes."""
    return cause_of(error).name in ("unknown", "memory")


def ready_to_write(out: Path) -> None:
    """Try to write into the folder of results, before what takes long; raises UserError where it cannot be written.

    A folder that is not there yet is not left behind: only results make it. Raises StorageError, too.
    """
    made = [one for one in (out, *out.parents) if not storage.exists(one)]

    def probe() -> None:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass

    try:
        storage.perform(out, probe)
        for one in made:
            one.rmdir()
    except OSError as error:
        remedy = explain_permissions(out) if error.errno in (errno.EACCES, errno.EPERM) else "choose another folder"
        raise UserError(f"--out {out} cannot be written: {error.strerror}; {remedy}") from None


def with_image_size(trained: Trained, size: int) -> Trained:
    """Return the same model for images of another size (0: its own), of which the same share is cut out."""
    found = trained.found
    if not size or size == found.size:
        return trained
    resize = max(size, round(found.resize * size / found.size))
    return replace(trained, found=replace(found, size=size, resize=resize))


def connect(device: torch.device, place: Place) -> Strategy:
    """Join the other processes."""
    if place.world == 1:
        from trainyard.parallel.single import Single

        return Single(device)
    from trainyard.parallel.ddp import Ddp

    return Ddp(place, device, CommSettings(), DdpSettings())


def on_device(trained: Trained, precision: str, device: torch.device) -> nn.Module:
    """Return the plain model with its weights, for inference."""
    model = rebuild(trained.found, trained.weights).to(device, torch.float64 if precision == "fp64" else torch.float32)
    if trained.found.in_channels_last(device.type == "cuda"):
        model.to(memory_format=torch.channels_last)
    return model


def _natural(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value
