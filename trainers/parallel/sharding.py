"""The shards that this process holds of tensors that FSDP distributes; other tensors are whole on every process."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def local_parts(tensors: list[Tensor]) -> list[Tensor]:
    """The shard that this process holds of each tensor, sharing its memory."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def sum_over_parts(values: Tensor, example: Tensor) -> Tensor:
    """Sum in place what each process computed from its shards; `example` is a tensor with the same sharding."""
    if isinstance(example, DTensor):
        for dimension, placement in enumerate(example.placements):
            if isinstance(placement, Shard):
                torch.distributed.all_reduce(values, group=example.device_mesh.get_group(dimension))
    return values
