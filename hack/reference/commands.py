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

ROOT = Path(__file__).parents[2]
TARGET = re.compile(r"^([a-z-]+):[^#\n]*## (.*)$", re.M)
# A command's words behind `python -m trainers.` or `scripts/`, and the module with its main function
CLUSTER = {name: f"commands.{name}" for name in ("why", "follow", "fetch", "send")}
TRAINING = {"ddp": "", "hvd": "", "config": "trainyard.config.__main__"}
PREPARE = ("prepare", "prepare build", "prepare verify", "prepare repair", "prepare look", "prepare weights")
DATA = dict.fromkeys(PREPARE, "trainyard.prepare.__main__")
AFTER = {
    "evaluate": "trainyard.inference.evaluate",
    "predict": "trainyard.inference.predict",
    "report": "trainyard.report.__main__",
    "scaling": "trainyard.report.scaling",
}
PODS = {"preflight": "trainyard.pod.preflight", "mpi": "trainyard.pod.mpi"}


def write() -> str:
    """Return the page."""
    targets = TARGET.findall((ROOT / "Makefile").read_text())
    return page(
        "# Commands",
        f"For whoever looks up an option: what each command's `--help` prints. {NOTE}",
        "In a checkout `python` is `.venv/bin/python`. Exit codes: [exit-codes.md](exit-codes.md).",
        "## About a release",
        "With your own `KUBECONFIG`; they need Python 3.11 or later and the package `kubernetes`, "
        "`trainyard fetch` and `trainyard send` also `kubectl`.",
        *sections(CLUSTER, "scripts/"),
        "## Training",
        "Several processes: `trainyard launch --nproc-per-node N -m trainers.ddp ...`, which takes "
        "[torchrun's options](https://docs.pytorch.org/docs/stable/elastic/run.html) and returns the exit code of the "
        "first process that fails; `mpirun -np N python -m trainers.hvd ...` for Horovod.",
        *sections(TRAINING),
        "## Data",
        *sections(DATA),
        "## After training",
        *sections(AFTER),
        "## What pods run",
        "The chart starts these; no one types them.",
        *sections(PODS),
        "## Targets of make",
        table(("target", "what it does"), [(f"`make {name}`", text) for name, text in targets]),
        "Next: [trainer settings](trainer-settings.md), [prepare settings](prepare-settings.md).",
    )


def sections(commands: dict[str, str], before: str = "python -m trainers.") -> Iterator[str]:
    """Yield the heading and the help of each command."""
    for name, module in commands.items():
        yield f"### {before}{name}"
        yield f"```text\n{helped(before + name, main(name, module)).strip()}\n```"


def main(name: str, module: str) -> Callable[[], object]:
    """Return a command's main function; the two trainers share theirs."""
    if module:
        function: Callable[[], object] = importlib.import_module(module).main
        return function
    about = (ROOT / "trainers" / f"{name}.py").read_text().partition('"""')[2].partition("\n")[0].removesuffix('"""')
    return lambda: importlib.import_module("trainyard.training.command").main(f"trainers.{name}", name, about)


def helped(command: str, function: Callable[[], object]) -> str:
    """Return what --help prints, on lines of 100 characters whatever the terminal's width."""
    words = command.removeprefix("python -m ").split()
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [words[0], *words[1:], "--help"]),
        mock.patch.dict(os.environ, {"COLUMNS": "100"}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        function()
    return out.getvalue()
