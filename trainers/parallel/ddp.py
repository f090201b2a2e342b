"""PyTorch's DistributedDataParallel, on gloo (cpu) or nccl (cuda)."""

import contextlib
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainers.exits import UserError
from trainers.parallel.base import Strategy
from trainers.parallel.environment import Place
from trainers.settings import Comm


class Ddp(Strategy):
    """Every process holds the whole model; gradients are averaged while backward runs."""

    name = "ddp"

    def __init__(self, place: Place, device: torch.device, comm: Comm) -> None:
        super().__init__(place, device)
        backend = comm.backend if comm.backend != "auto" else ("nccl" if device.type == "cuda" else "gloo")
        if backend == "nccl" and device.type != "cuda":
            raise UserError("comm.backend = 'nccl': nccl needs GPUs and this run is on cpu; use gloo or auto")
        timeout = timedelta(seconds=comm.timeout_seconds)
        dist.init_process_group(backend, timeout=timeout, device_id=device if backend == "nccl" else None)
        # Small things travel over gloo on the side: they neither wait for the GPU nor make it wait.
        self._side: Any = dist.new_group(backend="gloo", timeout=timeout)
        self._exact_sums = comm.gradients == "fp64"

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: D102
        # Buffers (BatchNorm's statistics) are sent before a validation, not before every forward.
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "`broadcast_buffers` is deprecated"
            )  # its successor is too new for NVIDIA's image
            wrapped = DistributedDataParallel(
                model,
                device_ids=[self.device.index] if self.device.type == "cuda" else None,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )
        if self._exact_sums:
            wrapped.register_comm_hook(None, sum_in_fp64)
        return wrapped

    def accumulating(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:  # noqa: D102
        assert isinstance(model, DistributedDataParallel)
        return model.no_sync()

    def sum(self, tensor: Tensor) -> Tensor:  # noqa: D102
        result = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(result, group=self._group(result))
        return result

    def vote(self, value: int) -> Callable[[], int]:  # noqa: D102
        ballot = torch.tensor(value)
        work: Any = dist.all_reduce(ballot, dist.ReduceOp.MAX, group=self._side, async_op=True)

        def outcome() -> int:
            work.wait()
            return int(ballot)

        return outcome

    def broadcast(self, tensor: Tensor) -> Tensor:  # noqa: D102
        result = tensor.clone(memory_format=torch.contiguous_format)
        dist.broadcast(result, 0, group=self._group(result))
        return result

    def broadcast_object(self, value: Any) -> Any:  # noqa: D102
        box = [value]
        dist.broadcast_object_list(box, 0, group=self._side)
        return box[0]

    def gather_objects(self, value: Any) -> list[Any]:  # noqa: D102
        box: list[Any] = [None] * self.world
        dist.all_gather_object(box, value, group=self._side)
        return box

    def is_lost_peer(self, error: BaseException) -> bool:  # noqa: D102
        text = str(error)
        signs = ("gloo", "Connection closed by peer", "Connection reset", "NCCL", "Broken pipe", "store", "Timed out")
        return isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and any(sign in text for sign in signs)
        )

    def close(self) -> None:  # noqa: D102
        dist.destroy_process_group()

    def _group(self, tensor: Tensor) -> Any:
        """Tensors on the CPU go over the side group; the main one may know GPUs only."""
        return self._side if tensor.device.type == "cpu" else None


def sum_in_fp64(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients in fp64: rounding back hides in which order the processes were added."""
    buffer: Tensor = bucket.buffer()
    work: Any = dist.all_reduce(buffer.double(), async_op=True)

    def rounded(future: Any) -> Tensor:
        return buffer.copy_(future.value()[0] / dist.get_world_size())

    averaged: torch.futures.Future[Tensor] = work.get_future().then(rounded)
    return averaged
