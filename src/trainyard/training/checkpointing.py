"""Gradient checkpointing: backward computes a block's activations again, from the input that was kept.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainyard.core.exits import UserError
from trainyard.models.batch_norm import untracked
from trainyard.parallel.blocks import blocks


def checkpoint_blocks(model: nn.Module) -> None:
    """Have every block of a model computed again in backward; raises UserError where there are none.

    Dropout draws the same numbers again. Our BatchNorm updates its running statistics only once; a normalisation of
    the user's own that keeps such statistics would do so twice.
    """
    found = [block for block in blocks(model) if any(True for _ in block.children())]
    if not found:
        raise UserError("model.checkpointing = True: this model has no blocks to compute again; set it to false")
    for block in found:
        block.forward = _again(block.forward)


def _again(forward: Any) -> Any:
    def checkpointed(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        if torch.compiler.is_compiling():  # the compiler moves updates of statistics out of what is computed again
            return checkpoint(forward, *inputs, use_reentrant=False, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=_contexts, **named)

    return checkpointed


def _contexts() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """For a block's forward, and for its second computation."""
    return contextlib.nullcontext(), untracked()
