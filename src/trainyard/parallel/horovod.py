"""Horovod: its background thread combines gradients over MPI, gloo or nccl.

Only this file imports Horovod, and only when it is asked for; the other strategies run without it.
"""

import contextlib
import ctypes
import os
import time
import types
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from trainyard import native
from trainyard.config.sections.running import CommSettings, HorovodSettings
from trainyard.core.exits import UserError
from trainyard.parallel.base import Strategy, clip
from trainyard.parallel.environment import Place
from trainyard.parallel.waiting import Waiting

YIELDS = "OMPI_MCA_mpi_yield_when_idle"  # OpenMPI's own switch for more processes than cores
PROGRESS_LIBRARIES = ("libopen-pal.so.40", "libopen-pal.so.80")  # of OpenMPI 4 and 5
WAIT_SECONDS = 1e-4  # between two looks for a result on CPUs, where a step takes milliseconds


class Horovod(Strategy):
    """Every process holds the whole model; Horovod averages gradients, or combines them by Adasum."""

    name = "horovod"

    def __init__(
        self, place: Place, device: torch.device, settings: HorovodSettings, comm: CommSettings, accumulation: int
    ) -> None:
        super().__init__(place, device)
        self._exact_sums = comm.gradients == "fp64"
        self._hvd = _import()
        self._settings = settings
        self._accumulation = accumulation
        tell_horovod(settings, os.environ)
        if device.type == "cpu":
            leave_cores_to_others(self._hvd.mpi_ops.mpi_lib)
        self._hvd.init()
        if (self._hvd.rank(), self._hvd.size()) != (place.rank, place.world):
            raise UserError(
                f"Horovod came up as rank {self._hvd.rank()} of {self._hvd.size()}, the launcher says {place.rank} of "
                f"{place.world}: it was built without this launcher's transport; use the project's image"
            )
        self._adasum = settings.op == "adasum" and place.world > 1  # on one process Horovod averages
        if device.type == "cpu" and self._hvd.mpi_enabled() and os.environ.get(YIELDS, "0") not in ("0", "false"):
            rest_in_mpi()
        if self._adasum and device.type == "cpu" and not self._hvd.mpi_enabled():
            raise UserError("horovod.op = 'adasum': on CPUs Horovod has it over MPI alone; start the run with mpirun")
        self._waiting = Waiting(device)
        self._calls: Counter[str] = Counter()

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: D102
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data.copy_(self.broadcast(tensor.data))
        return model

    def distribute(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:  # noqa: D102
        # The optimizer's state is not broadcast: Horovod would take a real step to create it. `load` gives all
        # processes the checkpoint's state instead.
        hvd = self._hvd
        wrapped: Optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=[(name, one) for name, one in model.named_parameters() if one.requires_grad],
            compression=self._compression(),
            backward_passes_per_step=self._accumulation,
            op=hvd.Adasum if self._settings.op == "adasum" else hvd.Average,
            gradient_predivide_factor=self._settings.predivide,
        )
        # Horovod makes its own from the groups alone, which say `fused`, without what the constructor derives from it:
        # a GradScaler would then read at each step whether gradients are finite
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            scaling: Any = wrapped
            scaling._step_supports_amp_scaling = True
        return wrapped

    def _compression(self) -> "InOrderOfMemory":
        """How Horovod compresses gradients."""
        kinds = self._hvd.Compression
        rounding = kinds.fp16 if self._settings.compression == "fp16" else kinds.none
        return InOrderOfMemory(SumInFp64 if self._exact_sums else rounding)

    def rate_batch(self, batch: int) -> float:  # noqa: D102
        # Adasum adds what processes agree on by itself, so a rate is one process' own; with NCCL it averages within a
        # node first (https://horovod.readthedocs.io/en/stable/adasum_user_guide_include.html)
        if not self._adasum:
            return batch
        together = self.place.local_world if self.device.type == "cuda" and self._hvd.nccl_built() else 1
        return batch * together / self.world

    def loss_weight(self, samples: int, total: int) -> float:  # noqa: D102
        if self._settings.op == "adasum":  # combines directions: each process contributes the mean of its own gradient
            return 1 / max(samples, 1)
        return self.world / total

    def step(self, optimizer: Optimizer, scaler: GradScaler, clip_norm: float = 0.0) -> None:  # noqa: D102
        distributed: Any = optimizer
        if self._adasum:  # it combines updates parameter by parameter: there is no sum to wait for
            distributed.step()
            return
        self._waiting.begin()
        distributed.synchronize()
        self._waiting.end()
        if clip_norm:
            scaler.unscale_(optimizer)
            clip(optimizer, clip_norm)
        with distributed.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()

    def exposed_seconds(self) -> float:  # noqa: D102
        return self._waiting.read()

    def sum(self, tensor: Tensor) -> Tensor:  # noqa: D102
        name = self._next_name("sum")
        result: Tensor = self._hvd.allreduce(tensor.detach().contiguous(), op=self._hvd.Sum, name=name)
        return result

    def _next_name(self, kind: str) -> str:
        """Return a name for a call, the same on all processes.

        Horovod matches calls by name. By itself it names them by a count of all calls, those of the gradients' hooks
        too, which come in another order on a process whose share of a forward is empty.
        """
        self._calls[kind] += 1
        return f"{kind}.{self._calls[kind]}"

    def vote(self, value: int) -> Callable[[], int]:  # noqa: D102
        handle = self._hvd.allreduce_async(torch.tensor([value]), op=self._hvd.Max, name=self._next_name("vote"))
        return lambda: int(self._hvd.synchronize(handle))

    def broadcast(self, tensor: Tensor) -> Tensor:  # noqa: D102
        result: Tensor = self._hvd.broadcast(tensor.contiguous(), root_rank=0, name=self._next_name("broadcast"))
        return result

    def broadcast_object(self, value: Any) -> Any:  # noqa: D102
        # Horovod matches calls by name; without one it would use the type of each rank's object.
        return self._hvd.broadcast_object(value, root_rank=0, name="object")

    def gather_objects(self, value: Any) -> list[Any]:  # noqa: D102
        return list(self._hvd.allgather_object(value, name="objects"))

    def close(self) -> None:  # noqa: D102
        self._hvd.shutdown()


def tell_horovod(settings: HorovodSettings, environ: MutableMapping[str, str]) -> None:
    """Set the environment variables that Horovod reads when it starts; keys that are not set change nothing."""
    if settings.cycle_ms is not None:
        environ["HOROVOD_CYCLE_TIME"] = f"{settings.cycle_ms:g}"
    if settings.fusion_mb is not None:
        environ["HOROVOD_FUSION_THRESHOLD"] = str(settings.fusion_mb << 20)


class InOrderOfMemory:
    """A "compression" around another that permutes axes: Horovod accepts contiguous tensors only, not channels_last."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """Return what travels, and what `decompress` needs to know."""
        packed, context = self._inner.compress(tensor)
        order = sorted(range(packed.dim()), key=lambda axis: -packed.stride(axis))
        return packed.permute(order), (order, context)

    def decompress(self, tensor: Tensor, context: Any) -> Tensor:
        """Return the sum, with its own axes."""
        order, inner = context
        whole: Tensor = self._inner.decompress(tensor.permute([order.index(axis) for axis in range(len(order))]), inner)
        return whole


class SumInFp64:
    """A "compression" that sums gradients in fp64, so that the order of processes does not show."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return what travels, and what `decompress` needs to know."""
        return tensor.double(), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the sum, rounded back."""
        return tensor.to(dtype)


def leave_cores_to_others(library: Any) -> None:
    """Let a process that waits for a result of Horovod's library sleep; by itself it looks again and again."""
    poll, take = library.horovod_torch_poll, library.horovod_torch_wait_and_clear
    if isinstance(take, types.FunctionType):  # done before in this process
        return

    def wait_and_take(handle: int) -> None:
        while not poll(handle):
            time.sleep(WAIT_SECONDS)
        take(handle)

    library.horovod_torch_wait_and_clear = wait_and_take


def rest_in_mpi() -> None:
    """Let OpenMPI sleep between two looks for messages; told to yield, a process that waits still keeps a core busy.

    At every eighth look it calls what is registered here. Without our compiled library all stays as it is. With a core
    for each process looking without end is faster: the demo by a tenth.
    """
    if (ours := native.library()) is None:
        return
    for name in PROGRESS_LIBRARIES:
        with contextlib.suppress(OSError):  # of another version, or of another MPI
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW).opal_progress_register_lp(ours.trainyard_idle)


def _import() -> Any:
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise UserError(
            f"Horovod is not installed ({error}); use the project's horovod image, or trainers.ddp"
        ) from None
    return hvd
