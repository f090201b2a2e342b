"""The two trainers, `trainers.ddp` and `trainers.hvd`, and the names that the package had before it was `trainyard`.

`import trainers.models.small` and `python -m trainers.prepare` go on working for one version: the one is the module of
`trainyard` of that name, the other the command of that name.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

CORE = ("exits", "files", "garbage", "named")
PROGRAMS = ("config", "prepare", "report")  # files here, with names of packages there


def today(name: str) -> str:
    """Return the name in `trainyard` of a module that was `trainers.NAME`."""
    rest = name.removeprefix("trainers.")
    return f"trainyard.core.{rest}" if rest.partition(".")[0] in CORE else f"trainyard.{rest}"


class Former(MetaPathFinder, Loader):
    """Finds what was `trainers.NAME`: the module of `trainyard` itself, not a copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of before; None for all others."""
        if not fullname.startswith("trainers.") or fullname.removeprefix("trainers.") in PROGRAMS:
            return None
        try:
            found = importlib.util.find_spec(today(fullname))
        except ModuleNotFoundError:
            return None
        return found and ModuleSpec(fullname, self, origin=found.origin, loader_state=found)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of today."""
        return importlib.import_module(today(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own specification back; it has been executed under its own name."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


if not any(type(one).__name__ == Former.__name__ for one in sys.meta_path):
    sys.meta_path.insert(0, Former())
