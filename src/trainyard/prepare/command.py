"""Command line of dataset preparation.

trainyard prepare build --config prepare.json [--retry 3600]
trainyard prepare build --set source.kind=http --set source.url=https://... --set out=/data/imagenet
trainyard prepare verify /data/imagenet
trainyard prepare repair --config prepare.json
trainyard prepare weights --config train.json
trainyard prepare look /data/imagenet
trainyard prepare --schema
"""

import argparse
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from trainyard import config as training
from trainyard.config import layers
from trainyard.core import garbage
from trainyard.core.exits import Exit, ExitError, InputError, UserError, no_core_dumps, printable
from trainyard.prepare.settings import Preparation, parse, schema


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name."""
    options = _parser().parse_args(arguments)
    if options.schema:
        print(json.dumps(schema(), indent=2))
        return Exit.DONE
    no_core_dumps()
    # A container's first process ignores SIGTERM by default
    signal.signal(signal.SIGTERM, _stop)
    # Imported late: the schema and wrong arguments need none of it
    with garbage.paused():
        from trainyard.prepare.build import Options, build
        from trainyard.prepare.looking import look
        from trainyard.prepare.verify import repair, verify

    if options.command == "verify":
        verify(options.folder)
        return Exit.DONE
    if options.command == "weights":
        fetch_weights(options)
        return Exit.DONE
    if options.command == "look":
        look(options.folder, options.out)
        return Exit.DONE
    if options.command not in ("build", "repair"):
        raise UserError("no command was given; use build, verify, repair, look or weights, or see --help")
    part, parts = _part(options.part)
    how = Options(part, parts, options.wait, options.progress)
    found = settings(options)
    retry(lambda: (build if options.command == "build" else repair)(found, how), options.retry)
    return Exit.DONE


def fetch_weights(options: argparse.Namespace) -> None:
    """Fetch the weights that the settings of a run name; raises UserError and ExitError."""
    from trainyard.prepare.fetch_weights import fetch

    run = training.load(options)
    retry(lambda: fetch(run.model, run.data, options.wait), options.retry)


def settings(options: argparse.Namespace) -> Preparation:
    """Return the settings that `--config` and `--set` give; raises UserError."""
    return parse(functools.reduce(layers.overlay, layers.read_options(options), {}))


def retry(work: Callable[[], object], seconds: float, first_pause: float = 10.0) -> None:
    """Do the work, and retry for `seconds` what can be fixed outside of the settings, in pauses of up to 5 minutes.

    Raises at the end what is still wrong, and anything else at once.
    """
    deadline, pause = time.monotonic() + seconds, first_pause
    while True:
        try:
            work()
            return
        except (InputError, ExitError) as error:
            left = deadline - time.monotonic()
            if left <= 0 or (isinstance(error, ExitError) and error.code != Exit.FAILED):
                raise
            wait = min(pause, left)
            text = f"prepare: waiting: {error} (retried in {wait:.0f} s, for at most {left / 60:.0f} min)"
            print(printable(text), file=sys.stderr, flush=True)
            time.sleep(wait)
            pause = min(2 * pause, 300.0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainyard prepare", description="Prepare a dataset for training.")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of the settings and end")
    commands = parser.add_subparsers(dest="command")
    for name, text in (("build", "prepare a folder, or resume its preparation"), ("repair", "rebuild damaged shards")):
        command = commands.add_parser(name, help=text)
        layers.add_options(command)
        _add_patience(command)
        command.add_argument(
            "--part", default="", metavar="I/N", help="share the work with others: this is number I of N"
        )
        command.add_argument("--progress", type=float, default=5.0, help="seconds between lines of progress")
    weights = commands.add_parser("weights", help="fetch the pretrained weights that a run's settings name, once")
    training.add_options(weights)
    _add_patience(weights)
    check = commands.add_parser("verify", help="check every byte of a prepared folder")
    check.add_argument("folder", type=Path)
    page = commands.add_parser("look", help="write a page that shows what a prepared folder holds")
    page.add_argument("folder", type=Path)
    page.add_argument("--out", type=Path, help="the page's file (default: dataset.html in the folder)")
    return parser


def _add_patience(command: argparse.ArgumentParser) -> None:
    command.add_argument("--wait", type=float, default=3600.0, help="most seconds to wait for another preparation")
    command.add_argument(
        "--retry",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="retry for so long what can be fixed meanwhile, such as credentials or a missing file",
    )


def _part(text: str) -> tuple[int, int]:
    """Read which part of the work this process does, from the option or an indexed Job's environment."""
    if not text and "TRAINYARD_PREPARE_PARTS" in os.environ:
        text = f"{os.environ.get('JOB_COMPLETION_INDEX', '')}/{os.environ['TRAINYARD_PREPARE_PARTS']}"
    if not text:
        return 0, 1
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise UserError(f"'{text}' is no part of the work; write it as I/N with I from 0 to N - 1")
    return int(part), int(parts)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise ExitError("stopped by SIGTERM; the same command resumes after the finished shards", Exit.STOPPED)
