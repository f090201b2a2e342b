"""The shards that this process holds of tensors that FSDP distributes; other tensors are whole on every process."""

import sys
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:  # takes half a second, which only FSDP needs
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether FSDP distributes a tensor; where it does, it has imported the type of such tensors."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_parts(tensors: list[Tensor]) -> list[Tensor]:
    """Return the shard that this process holds of each tensor, sharing its memory."""
    return [tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors]


def sum_over_parts(values: Tensor, example: Tensor) -> Tensor:
    """Sum in place what each process computed from its shards; `example` is a tensor with the same sharding."""
    if is_sharded(example):
        from torch.distributed.tensor import Shard

        for dimension, placement in enumerate(example.placements):
            if isinstance(placement, Shard):
                torch.distributed.all_reduce(values, group=example.device_mesh.get_group(dimension))
    return values
