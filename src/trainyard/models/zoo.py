"""torchvision's models, each imported by itself: all of torchvision takes a second of CPU time, a ResNet 0.1.

The rest is detection, video, datasets, ONNX's operators and, for one of them, torch.compile's machinery. What is
imported here stays: a later import of torchvision gets all of it, with these very modules.
"""

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

# The packages whose __init__ imports what one model does not need, each after the one that it is in
PACKAGES = ("torchvision", "torchvision.models", "torchvision.ops")


def get_model(name: str) -> Callable[..., Any] | None:
    """Get the `get_model` of torchvision, which knows the classification model of this name; None if there is none."""
    found: Callable[..., Any]
    if file := _file_of(name):
        # a model that imports from a package itself, as EfficientNet does, comes with all others
        with contextlib.suppress(ImportError, AttributeError), alone():
            importlib.import_module(f"{PACKAGES[1]}.{file}")
            found = importlib.import_module(f"{PACKAGES[1]}._api").get_model
            return found
    found = importlib.import_module(PACKAGES[1]).get_model
    return found if name in names() else None


def names() -> list[str]:
    """Return the names of torchvision's classification models."""
    models: Any = importlib.import_module(PACKAGES[1])
    found: list[str] = models.list_models(module=models)
    return found


def _file_of(name: str) -> str | None:
    """Return the module of torchvision.models that defines a model."""
    spec = importlib.util.find_spec(PACKAGES[0])
    if spec is None or not spec.origin:
        return None
    defines = re.compile(rf"^@register_model\(\)\n(?:@.*\n)*def {re.escape(name)}\(", re.MULTILINE)
    files = sorted(Path(spec.origin).with_name("models").glob("*.py"))
    return next((file.stem for file in files if defines.search(file.read_text("utf-8"))), None)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within this context, modules of PACKAGES are imported, and what the packages' own __init__ imports is not."""
    if PACKAGES[0] in sys.modules:
        yield
        return
    before = set(sys.modules)
    try:
        for name in PACKAGES:
            spec = importlib.util.find_spec(name)
            if spec is None or not isinstance(spec.loader, SourceFileLoader):
                raise ImportError(f"{name} is no folder of Python files")
            sys.modules[name] = importlib.util.module_from_spec(spec)
        yield
    except BaseException:
        for name in set(sys.modules) - before:
            if name.startswith(f"{PACKAGES[0]}."):
                del sys.modules[name]
        raise
    finally:
        for name in PACKAGES:
            sys.modules.pop(name, None)
        _Completed.install()


class _Completed(MetaPathFinder):
    """Finds PACKAGES when they are imported whole, and makes modules that are there already their attributes.

    Python does that only for a module that it loads below its package.
    """

    @classmethod
    def install(cls) -> None:
        """Take part in all imports, once."""
        if not any(isinstance(finder, cls) for finder in sys.meta_path):
            sys.meta_path.insert(0, cls())

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find one of PACKAGES, and leave all else to the others."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in PACKAGES else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        prefix = f"{module.__name__}."
        for name, child in list(sys.modules.items()):
            if name.startswith(prefix) and "." not in name.removeprefix(prefix):
                setattr(module, name.removeprefix(prefix), child)
        super().exec_module(module)
