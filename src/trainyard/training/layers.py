"""The layers of a model from the bottom up, by which fine-tuning scales the learning rates of its parameters.

Layer-wise decay: Bao et al., "BEiT: BERT Pre-Training of Image Transformers", arXiv:2106.08254, as timm has it
(timm.optim.param_groups_layer_decay): the head learns at the full rate, each layer below it at `decay` times the rate
of the one above.
"""

from typing import Any

from torch import nn

from trainyard.config.sections.learning import Optimizer as Settings
from trainyard.models.fitting import find_head
from trainyard.parallel.blocks import blocks


def scales(model: nn.Module, settings: Settings) -> dict[str, float]:
    """The factor of each parameter's learning rate, by its name; the head's own is part of it."""
    layers = layer_of(model)
    top, head = max(layers.values()), find_head(model)[0] + "."
    return {
        name: settings.layer_decay ** (top - layer) * (settings.head_lr_scale if name.startswith(head) else 1.0)
        for name, layer in layers.items()
    }


def layer_of(model: nn.Module) -> dict[str, int]:
    """The layer of each parameter, by its name: 0 is the stem, then comes a layer per block; the head is the last.

    timm's models say themselves how they are divided. In others a block is what is repeated (parallel/blocks.py); what
    lies between two blocks belongs to the upper one, and what follows the last, such as a norm, belongs to it.
    """
    if hasattr(model, "group_matcher"):
        from timm.models import group_parameters

        timms: Any = model
        theirs: dict[str, int] = group_parameters(timms, timms.group_matcher(coarse=False), reverse=True)
        return theirs
    head = find_head(model)[0] + "."
    found = [block for block in blocks(model) if any(True for _ in block.children())]
    block_of = {id(part): index for index, block in enumerate(found, 1) for part in block.parameters()}
    layers, above, below = {}, len(found), set(block_of)
    for name, parameter in reversed(list(model.named_parameters())):
        above = block_of.get(id(parameter), above)
        below.discard(id(parameter))  # what is left are the blocks' parameters that come before this one
        stem = id(parameter) not in block_of and not below
        layers[name] = len(found) + 1 if name.startswith(head) else 0 if stem else above
    return layers
