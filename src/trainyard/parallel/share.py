"""Broadcast a tree of tensors from rank 0: its structure as an object, then its tensors one by one.

Broadcast as an object, the whole tree is pickled, which takes three times its memory; tensor by tensor takes the
largest one's once. torch.distributed.checkpoint.state_dict, which FSDP uses, knows no Horovod, and takes 0.1 s of
CPU time to import.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Spec(NamedTuple):
    """A tensor's shape and type."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def share(tree: Any, send_object: Callable[[Any], Any], send: Callable[[Tensor], Tensor], device: torch.device) -> Any:
    """Return rank 0's tree on all; `send_object` and `send` give rank 0's argument to all.

    Tensors arrive on `device`, scalar ones on the CPU. Trees are dicts, lists and tuples; a tuple arrives as a list.
    """
    specs = send_object(_specs(tree))
    tensors = iter(_tensors(tree))

    def receive(spec: Any) -> Any:
        if isinstance(spec, Spec):
            mine = next(tensors, None)
            where = device if spec.shape else torch.device("cpu")  # step counts are read without waiting for a GPU
            return send(torch.empty(spec.shape, dtype=spec.dtype, device=where) if mine is None else mine.to(where))
        if isinstance(spec, dict):
            return {key: receive(value) for key, value in spec.items()}
        return [receive(value) for value in spec] if isinstance(spec, list) else spec

    return receive(specs)


def _specs(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return Spec(tuple(tree.shape), tree.dtype)
    if isinstance(tree, dict):
        return {key: _specs(value) for key, value in tree.items()}
    return [_specs(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)
