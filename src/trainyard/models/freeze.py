"""Parts of a model that stay as they are while the rest is fine-tuned."""

import fnmatch
import types
from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from trainyard.core.exits import UserError
from trainyard.models.fitting import find_head

BACKBONE = "backbone"


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters whose name, or that of a module around them, fits a pattern; raises UserError.

    A frozen parameter gets no gradient. A BatchNorm whose parameters are frozen stays in evaluation: it normalises by
    the statistics that it has, and keeps them.
    """
    if not patterns:
        return
    for pattern in patterns:
        frozen = [name for name, _ in model.named_parameters() if fits(name, pattern, model)]
        if not frozen and not any(fits(name, pattern, model) for name, _ in model.named_modules() if name):
            parts = ", ".join(name for name, _ in model.named_children())
            raise UserError(
                f"model.freeze = {pattern!r}: no module or parameter of this model has such a name; its parts are "
                f"{parts}; `backbone` is all but the head"
            )
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"model.freeze = {list(patterns)!r}: nothing is left to learn; leave out the head")
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and _is_frozen(name, module, patterns, model):
            module.eval()
            module.train = types.MethodType(_stay, module)  # type: ignore[method-assign]


def fits(name: str, pattern: str, model: nn.Module) -> bool:
    """Whether a pattern means the parameter or module `name`: its own name, or that of a module around it."""
    if pattern == BACKBONE:
        head = find_head(model)[0]
        return name != head and not name.startswith(f"{head}.")
    parts = name.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[: count + 1]), pattern) for count in range(len(parts)))


def _is_frozen(name: str, module: nn.Module, patterns: Sequence[str], model: nn.Module) -> bool:
    parameters = list(module.parameters(recurse=False))
    if parameters:
        return not any(parameter.requires_grad for parameter in parameters)
    return any(fits(name, pattern, model) for pattern in patterns)


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    """In place of `train`: the module stays as it is."""
    return module
