"""Command line of dataset preparation.

python -m trainers.prepare build --config prepare.json [--retry 3600]
python -m trainers.prepare build --set source.kind=http --set source.url=https://... --set out=/data/imagenet
python -m trainers.prepare verify /data/imagenet
python -m trainers.prepare repair --config prepare.json
python -m trainers.prepare --schema
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from trainers.exits import Exit, ExitError, InputError, UserError, guarded
from trainers.prepare import config as configs


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name."""
    options = _parser().parse_args(arguments)
    if options.schema:
        print(json.dumps(configs.schema(), indent=2))
        return Exit.DONE
    # As a container's first process, SIGTERM would otherwise be ignored
    signal.signal(signal.SIGTERM, _stop)
    # Imported late: the schema and wrong arguments need none of it
    from trainers.prepare.build import Options, build
    from trainers.prepare.verify import repair, verify

    if options.command == "verify":
        verify(options.folder)
        return Exit.DONE
    if options.command not in ("build", "repair"):
        raise UserError("no command was given; use build, verify or repair, or see --help")
    part, parts = _part(options.part)
    how = Options(part, parts, options.wait, options.progress)
    settings = _settings(options.config, options.set)
    _until_mended(lambda: (build if options.command == "build" else repair)(settings, how), options.retry)
    return Exit.DONE


def _until_mended(work: Callable[[], object], seconds: float, first_pause: float = 10.0) -> None:
    """Do the work; for so long, try again what may be mended outside of the settings, in pauses of up to 5 minutes.

    Raises what is still wrong at the end, and anything else at once.
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
            text = f"prepare: waiting: {error} (it is tried again in {wait:.0f} s, for at most {left / 60:.0f} min)"
            print(text, file=sys.stderr, flush=True)
            time.sleep(wait)
            pause = min(2 * pause, 300.0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainers.prepare", description="Prepare a dataset for training.")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of the settings and end")
    commands = parser.add_subparsers(dest="command")
    for name, text in (("build", "prepare a folder, or go on with it"), ("repair", "make damaged shards again")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--config", type=Path, help="settings as JSON or YAML")
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="set or override one setting"
        )
        command.add_argument(
            "--part", default="", metavar="I/N", help="share the work with others: this is number I of N"
        )
        command.add_argument("--wait", type=float, default=3600.0, help="most seconds to wait for another preparation")
        command.add_argument(
            "--retry",
            type=float,
            default=0.0,
            metavar="SECONDS",
            help="for so long, try again what may be mended meanwhile, such as credentials or a missing archive",
        )
        command.add_argument("--progress", type=float, default=5.0, help="seconds between lines of progress")
    check = commands.add_parser("verify", help="check every byte of a prepared folder")
    check.add_argument("folder", type=Path)
    return parser


def _settings(path: Path | None, overrides: list[str]) -> configs.Config:
    """Read the settings and apply `--set key.path=value`; values are JSON where they can be, else text."""
    data: Any = configs.read(path) if path else {}
    if not isinstance(data, dict):
        raise UserError(f"{path} holds no settings")
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"--set {override}: write it as key=value")
        *parents, last = key.split(".")
        target = data
        for parent in parents:
            target = target.setdefault(parent, {})
        try:
            target[last] = json.loads(text)
        except json.JSONDecodeError:
            target[last] = text
    return configs.parse(data)


def _part(text: str) -> tuple[int, int]:
    """Read which part of the work is ours: from the option, or from an indexed Job's environment."""
    if not text and "TRAINYARD_PREPARE_PARTS" in os.environ:
        text = f"{os.environ.get('JOB_COMPLETION_INDEX', '')}/{os.environ['TRAINYARD_PREPARE_PARTS']}"
    if not text:
        return 0, 1
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise UserError(f"'{text}' is no part of the work; write it as I/N with I from 0 to N - 1")
    return int(part), int(parts)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise ExitError("stopped by SIGTERM; the same command goes on from the finished shards", Exit.STOPPED)


if __name__ == "__main__":
    sys.exit(guarded(main))
