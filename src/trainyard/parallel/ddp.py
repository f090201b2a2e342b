"""PyTorch's DistributedDataParallel: every process holds the whole model; gradients are averaged during backward."""

import contextlib
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainyard.config.sections.running import CommSettings, DdpSettings
from trainyard.parallel import eager
from trainyard.parallel.environment import Place
from trainyard.parallel.process_group import Group
from trainyard.parallel.waiting import Waiting

WIRE = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


class Ddp(Group):
    """Each bucket of gradients is averaged as soon as it is complete, while backward computes the others."""

    name = "ddp"

    def __init__(self, place: Place, device: torch.device, comm: CommSettings, settings: DdpSettings) -> None:
        super().__init__(place, device, comm)
        self._settings = settings

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: D102
        with warnings.catch_warnings(), eager.without_compiler():
            # Its successor is not in NVIDIA's image yet.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
            wrapped = eager.eager_class(DistributedDataParallel)(
                model,
                device_ids=[self.device.index] if self.device.type == "cuda" else None,
                broadcast_buffers=False,  # BatchNorm's statistics are sent before a validation, not every forward
                gradient_as_bucket_view=True,
                bucket_cap_mb=self._settings.bucket_mb,
                static_graph=self._settings.static_graph,
            )
        reduction = Reduction(wire_dtype(self._comm), self._waiting, averages=dist.get_backend() == "nccl")
        wrapped.register_comm_hook(reduction, average_bucket)
        return wrapped

    def accumulating(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:  # noqa: D102
        assert isinstance(model, DistributedDataParallel)
        return model.no_sync()

    def step(self, optimizer: Optimizer, scaler: GradScaler, clip_norm: float = 0.0) -> None:  # noqa: D102
        self._waiting.end()
        super().step(optimizer, scaler, clip_norm)


@dataclass(frozen=True)
class Reduction:
    """How buckets are averaged: the type in which they travel (None: their own), and who times the wait.

    NCCL `averages` while it sums, which saves a pass over the gradients; gloo does not.
    """

    dtype: torch.dtype | None
    waiting: Waiting
    averages: bool = False


def wire_dtype(comm: CommSettings) -> torch.dtype | None:
    """Return the type in which gradients travel; None: their own."""
    return WIRE.get("fp64" if comm.gradients == "fp64" else comm.compression)


def average_bucket(state: Reduction, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients over all processes.

    In fp64, rounding back hides the order in which processes were added. In 16 bits, gradients are divided before the
    sum, so that the sum of many processes stays within fp16's range.
    """
    buffer: Tensor = bucket.buffer()
    world = dist.get_world_size()
    before, after = (1, world) if state.dtype == torch.float64 else (world, 1)
    averages = state.averages and before > 1  # NCCL divides before it sums, too
    sent = buffer if state.dtype is None else buffer.to(state.dtype)
    if before > 1 and not averages:
        sent.div_(before)
    work: Any = dist.all_reduce(sent, dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM, async_op=True)
    if bucket.is_last():  # from here on this process only waits
        state.waiting.begin()

    def write_back(future: Any) -> Tensor:
        result: Tensor = future.value()[0]
        if state.dtype is None:
            return result
        return buffer.copy_(result / after if after > 1 else result)

    future: torch.futures.Future[Tensor] = work.get_future().then(write_back)
    return future
