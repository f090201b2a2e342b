"""What a process has of tensors whose parts FSDP spreads over processes; other tensors it has whole."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


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


def laid_out_as(example: Tensor, value: Any) -> Any:
    """A whole tensor, known to every process, as this one's part of it where the example is spread and of its shape.

    Anything else is returned as it is: a step count beside a spread weight, a tensor that is spread already.
    """
    if not isinstance(example, DTensor) or isinstance(value, DTensor):
        return value
    if not isinstance(value, Tensor) or value.shape != example.shape:
        return value
    whole = value.to(example.device)
    return distribute_tensor(whole, example.device_mesh, example.placements, src_data_rank=None)
