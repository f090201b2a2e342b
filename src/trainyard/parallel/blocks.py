"""The parts of a model that FSDP gathers, gradient checkpointing computes again, and layer decay counts."""

from collections import Counter
from collections.abc import Iterator

from torch import nn

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
LARGE_LAYER = 1_000_000  # parameters; a layer outside of blocks with more is gathered by itself


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are gathered one at a time: repeated blocks, and large layers outside of them.

    A block is the outermost module of a class that occurs at least twice and has children. A model without blocks is
    gathered child by child. The rest belongs to the root, which is gathered with the first block.
    """
    kinds = Counter(type(module) for module in model.modules() if any(True for _ in module.children()))
    repeated = {kind for kind, count in kinds.items() if count > 1 and kind not in CONTAINERS}
    found = [part for part in outermost(model, repeated) if count_parameters(part)]
    return found or [child for child in model.children() if count_parameters(child)]


def outermost(module: nn.Module, kinds: set[type[nn.Module]]) -> Iterator[nn.Module]:
    """Yield the modules of these classes that lie in no other such module, and large layers."""
    for child in module.children():
        is_layer = not any(True for _ in child.children())
        if type(child) in kinds or (is_layer and count_parameters(child) >= LARGE_LAYER):
            yield child
        else:
            yield from outermost(child, kinds)


def count_parameters(module: nn.Module) -> int:
    """Count the learned values in a module."""
    return sum(parameter.numel() for parameter in module.parameters())
