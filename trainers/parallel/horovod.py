"""Horovod: gradients are combined by its own background thread, over MPI, gloo or nccl.

Horovod is imported here and nowhere else, when it is asked for: the other strategies run without it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from trainers.exits import UserError
from trainers.parallel.base import Strategy, clip
from trainers.parallel.environment import Place
from trainers.settings import Comm
from trainers.settings import Horovod as Settings


class Horovod(Strategy):
    """Every process holds the whole model; Horovod averages gradients, or combines them by Adasum."""

    name = "horovod"

    def __init__(self, place: Place, device: torch.device, settings: Settings, comm: Comm, accumulation: int) -> None:
        super().__init__(place, device)
        if settings.compression == "fp16" and comm.gradients == "fp64":
            raise UserError("horovod.compression = 'fp16' and comm.gradients = 'fp64': set one of the two")
        self._exact_sums = comm.gradients == "fp64"
        self._hvd = _import()
        self._settings = settings
        self._accumulation = accumulation
        self._hvd.init()
        if (self._hvd.rank(), self._hvd.size()) != (place.rank, place.world):
            raise UserError(
                f"Horovod came up as rank {self._hvd.rank()} of {self._hvd.size()}, the launcher says {place.rank} of "
                f"{place.world}: it was built without this launcher's transport; use the project's image"
            )
        if settings.op == "adasum" and place.world & (place.world - 1):
            raise UserError(f"horovod.op = 'adasum': needs a power-of-two number of processes, not {place.world}")

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: D102
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def distribute(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:  # noqa: D102
        # The optimizer's state is not broadcast: on a fresh one Horovod takes a real step to make it appear. Every
        # process loads the same checkpoint instead.
        hvd = self._hvd
        wrapped: Optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=list(model.named_parameters()),
            compression=self._compression(),
            backward_passes_per_step=self._accumulation,
            op=hvd.Adasum if self._settings.op == "adasum" else hvd.Average,
        )
        return wrapped

    def _compression(self) -> Any:
        """How Horovod changes gradients on their way."""
        if self._exact_sums:
            return SumInFp64
        return self._hvd.Compression.fp16 if self._settings.compression == "fp16" else self._hvd.Compression.none

    def loss_weight(self, samples: int, total: int) -> float:  # noqa: D102
        if self._settings.op == "adasum":  # combines directions, so each process brings its own mean gradient
            return 1 / max(samples, 1)
        return self.world / total

    def step(self, optimizer: Optimizer, scaler: GradScaler, clip_norm: float = 0.0) -> None:  # noqa: D102
        if not scaler.is_enabled() and not clip_norm:
            optimizer.step()
            return
        distributed: Any = optimizer
        distributed.synchronize()
        scaler.unscale_(optimizer)
        if clip_norm:
            clip(optimizer, clip_norm)
        with distributed.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()

    def sum(self, tensor: Tensor) -> Tensor:  # noqa: D102
        result: Tensor = self._hvd.allreduce(tensor.detach(), op=self._hvd.Sum)
        return result

    def vote(self, value: int) -> Callable[[], int]:  # noqa: D102
        handle = self._hvd.allreduce_async(torch.tensor([value]), op=self._hvd.Max)
        return lambda: int(self._hvd.synchronize(handle))

    def broadcast(self, tensor: Tensor) -> Tensor:  # noqa: D102
        result: Tensor = self._hvd.broadcast(tensor, root_rank=0)
        return result

    def broadcast_object(self, value: Any) -> Any:  # noqa: D102
        # Horovod matches calls by name, which it would take from the type of each rank's object.
        return self._hvd.broadcast_object(value, root_rank=0, name="object")

    def gather_objects(self, value: Any) -> list[Any]:  # noqa: D102
        return list(self._hvd.allgather_object(value, name="objects"))

    def is_lost_peer(self, error: BaseException) -> bool:  # noqa: D102
        return type(error).__name__ == "HorovodInternalError"

    def close(self) -> None:  # noqa: D102
        self._hvd.shutdown()


class SumInFp64:
    """A "compression" of Horovod's that sums gradients in fp64, so that the order of the processes does not show."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """What travels, and what `decompress` needs to know."""
        return tensor.double(), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum, rounded back."""
        return tensor.to(dtype)


def _import() -> Any:
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise UserError(
            f"Horovod is not installed ({error}); use the project's horovod image, or trainers.ddp"
        ) from None
    return hvd
