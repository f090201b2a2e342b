"""What a process has of tensors whose parts FSDP spreads over processes; other tensors it has whole."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def local_parts(tensors: list[Tensor]) -> list[Tensor]:
    """The part of each tensor that this process has, sharing its memory."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def sum_over_parts(values: Tensor, example: Tensor) -> Tensor:
    """Sum, in place, what each process found in its own parts of tensors that are spread as the example is."""
    if isinstance(example, DTensor):
        for dimension, placement in enumerate(example.placements):
            if isinstance(placement, Shard):
                torch.distributed.all_reduce(values, group=example.device_mesh.get_group(dimension))
    return values
