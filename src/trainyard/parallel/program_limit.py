"""How many programs torch.compile may build of one function."""

import importlib
from typing import Any


def allow_programs(count: int, dynamo: Any = None) -> None:
    """Let torch.compile keep so many programs of one function; what comes after them would run without the compiler.

    Torch keeps 8. All compiled modules are called by the same function, and ResNet-50's 16 blocks have 8 shapes; each
    size of images is a program, too. `dynamo`: another torch's settings, in place of this one's.
    """
    if dynamo is None:
        dynamo = importlib.import_module("torch._dynamo.config")
    name = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"  # before torch 2.7
    setattr(dynamo, name, max(count, getattr(dynamo, name)))
