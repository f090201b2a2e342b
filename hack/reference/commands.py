"""Reference of the commands: what each one's --help prints, and the targets of make."""

import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from hack.reference.markdown import NOTE, page, table
from trainyard import cli

ROOT = Path(__file__).parents[2]
TARGET = re.compile(r"^([a-z-]+):[^#\n]*## (.*)$", re.M)
TRAINERS = {"ddp": "ddp", "hvd": "horovod"}  # programs of trainers/, and their launcher
PARTS = {"prepare": ("build", "verify", "repair", "look", "weights")}
SHOWN_ELSEWHERE = ("launch",)  # torchrun's options
BEFORE = {
    cli.RELEASE: "With your own `KUBECONFIG`; `trainyard fetch` and `trainyard send` also need `kubectl`.",
    cli.TRAINING: "`trainyard launch --nproc-per-node N -m trainers.ddp ...` takes [torchrun's "
    "options](https://docs.pytorch.org/docs/stable/elastic/run.html) and returns the exit code of the first process "
    "that fails; `mpirun -np N python -m trainers.hvd ...` for Horovod.",
    cli.PODS: "The chart starts these; no one types them.",
}


def write() -> str:
    """Return the page."""
    targets = TARGET.findall((ROOT / "Makefile").read_text())
    return page(
        "# Commands",
        f"For looking up an option: what each command's `--help` prints. {NOTE}",
        "In a checkout the command is `.venv/bin/trainyard`. Exit codes: [exit-codes.md](exit-codes.md).",
        f"```text\n{cli.overview()}\n```",
        *(part for title, group in cli.COMMANDS.items() for part in chapter(title, group)),
        "## The two trainers",
        *(section(f"python -m trainers.{name}", trainer(name)) for name in TRAINERS),
        "## Targets of make",
        table(("target", "what it does"), [(f"`make {name}`", text) for name, text in targets]),
        "Next: [trainer settings](trainer-settings.md), [prepare settings](prepare-settings.md).",
    )


def chapter(title: str, group: dict[str, cli.Command]) -> Iterator[str]:
    """Yield a group's heading, and the sections of its commands."""
    yield f"## {title}"
    if title in BEFORE:
        yield BEFORE[title]
    for name, command in group.items():
        if name not in SHOWN_ELSEWHERE:
            for words in (name, *(f"{name} {part}" for part in PARTS.get(name, ()))):
                yield section(f"trainyard {words}", cli.function(command))


def section(command: str, function: Callable[[], object]) -> str:
    """Return the heading and the help of a command."""
    return f"### {command}\n\n```text\n{helped(command, function).strip()}\n```"


def trainer(name: str) -> Callable[[], object]:
    """Return the main function of one of the two trainers, which share theirs."""
    about = importlib.import_module(f"trainers.{name}").__doc__ or ""
    main = importlib.import_module("trainyard.training.command").main
    return lambda: main(f"python -m trainers.{name}", TRAINERS[name], about.partition("\n")[0])


def helped(command: str, function: Callable[[], object]) -> str:
    """Return what --help prints, on lines of 100 characters whatever the terminal's width."""
    words = command.removeprefix("python -m ").split()
    skipped = 2 if words[0] == "trainyard" else 1
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [words[0], *words[skipped:], "--help"]),
        mock.patch.dict(os.environ, {"COLUMNS": "100"}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        function()
    return out.getvalue()
