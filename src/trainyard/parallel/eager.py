"""torch's classes without what they do for torch.compile, where nothing is compiled.

torch.optim and DistributedDataParallel import torch._dynamo at their first call, only to tell it what not to compile.
It brings torch._inductor, triton and sympy: a second of CPU time and 170 MB for each process. What is taken away
here is known by its code's name, so a torch that does it in another way is left as it is, and imports that.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

COMPILER = "torch._dynamo"
Kind = TypeVar("Kind", bound=type)


def eager_class(kind: Kind) -> Kind:
    """Get the class, with methods that do the same and do not import the compiler; for calls that are not compiled."""
    methods = {name: method for name in dir(kind) if callable(method := getattr(kind, name))}
    bare = {name: _bare(method) for name, method in methods.items()}
    own = {name: method for name, method in bare.items() if method is not methods[name]}
    made: Kind = type(kind)(kind.__name__, (kind,), {**own, "__module__": kind.__module__, "__doc__": kind.__doc__})
    return made


def _bare(method: Any) -> Any:
    """Return a method without the wrapper that imports the compiler; itself if it has none."""
    wrapper = getattr(getattr(method, "__code__", None), "co_qualname", "")
    inner: Any = getattr(method, "__wrapped__", None)
    if wrapper == "_disable_dynamo.<locals>.inner":
        return inner
    if wrapper == "Optimizer.profile_hook_step.<locals>.wrapper":  # of a class that has had an object
        return _bare(inner)
    if wrapper == "_use_grad_for_differentiable.<locals>._use_grad":  # `differentiable` is off
        return torch.no_grad()(inner)
    if wrapper == "contextmanager.<locals>.helper" and _bare(inner) is not inner:
        return contextlib.contextmanager(_bare(inner))
    return method


class _Answers:
    """Stands for a module that is not imported: it has the given attributes, and imports the module for any other."""

    def __init__(self, module: str, **known: Any) -> None:
        self._module = module
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Within this context, DistributedDataParallel's constructor gets the compiler's answer without importing it."""
    if COMPILER in sys.modules:
        yield
        return
    utils = _Answers(f"{COMPILER}.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")  # unless it is told otherwise
    answers = vars(torch)["_dynamo"] = _Answers(COMPILER, utils=utils)
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is answers:
            del vars(torch)["_dynamo"]
