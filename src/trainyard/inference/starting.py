"""The first line of programs that load a model, before PyTorch is loaded; nothing slow is imported here."""

import importlib
import sys
from collections.abc import Callable

from trainyard import parallel
from trainyard.core import garbage


def say_what_loads(what: str) -> None:
    """Print on rank 0 what takes long now; `--help` is answered without it. Raises UserError."""
    first = parallel.locate("ddp").rank == 0
    if first and not {"-h", "--help"}.intersection(sys.argv):
        then = "the model" if what == "export" else "the model and the images"
        print(f"{what}: PyTorch is loaded, then {then}", flush=True)


def evaluate() -> int:
    """Say what is loaded, load it, and evaluate."""
    return _start("evaluate")


def predict() -> int:
    """Say what is loaded, load it, and predict."""
    return _start("predict")


def export() -> int:
    """Say what is loaded, load it, and export."""
    return _start("export")


def _start(what: str) -> int:
    say_what_loads(what)
    with garbage.paused():
        main: Callable[[], int] = importlib.import_module(f"trainyard.inference.{what}").main
    return main()
