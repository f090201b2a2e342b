"""The part that DDP and FSDP share: a torch.distributed process group, on gloo (cpu) or nccl (cuda)."""

import os
from collections.abc import Callable, MutableMapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainyard.config.sections.running import CommSettings
from trainyard.core.exits import UserError
from trainyard.parallel.base import Strategy
from trainyard.parallel.environment import Place
from trainyard.parallel.waiting import Waiting


class Group(Strategy):
    """A strategy whose processes meet in a process group."""

    def __init__(self, place: Place, device: torch.device, comm: CommSettings) -> None:
        super().__init__(place, device)
        backend = comm.backend if comm.backend != "auto" else ("nccl" if device.type == "cuda" else "gloo")
        if backend == "nccl" and device.type != "cuda":
            raise UserError("comm.backend = 'nccl': nccl needs GPUs and this run is on cpu; use gloo or auto")
        if backend == "nccl":
            tell_nccl(os.environ)
        timeout = timedelta(seconds=comm.timeout_seconds)
        dist.init_process_group(backend, timeout=timeout, device_id=device if backend == "nccl" else None)
        # Small messages use a second group over gloo: they do not wait for the GPU, and it does not wait for them.
        self._side: Any = dist.new_group(backend="gloo", timeout=timeout)
        self._comm = comm
        self._waiting = Waiting(device)

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

    def exposed_seconds(self) -> float:  # noqa: D102
        return self._waiting.read()

    def close(self) -> None:  # noqa: D102
        dist.destroy_process_group()

    def _group(self, tensor: Tensor) -> Any:
        """Return the group for a tensor: on the CPU the side group, since the main one may know GPUs only."""
        return self._side if tensor.device.type == "cpu" else None


def tell_nccl(environ: MutableMapping[str, str]) -> None:
    """Let the thread that trains be the one that ends by an error of the GPU, with its exit code and words.

    By default torch's NCCL watchdog, which looks at the same GPU, aborts the process as soon as it sees the error:
    whichever thread is first decides between exit code 201 and SIGABRT. Told not to, it would also let a collective
    wait for ever; comm.timeout_seconds still ends that, where torch knows the second variable (from 2.15 on; before,
    comm.hang_seconds does, and NCCL's monitor after 8 minutes). The loss of a peer shows in the next vote, over gloo.
    """
    environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")
    environ.setdefault("TORCH_NCCL_TEARDOWN_ON_TIMEOUT", "1")
