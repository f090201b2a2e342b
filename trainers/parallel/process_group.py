"""What DDP and FSDP share: a torch.distributed process group, on gloo (cpu) or nccl (cuda)."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
from torch.optim import Optimizer

from trainers.config.sections.running import Comm
from trainers.exits import UserError
from trainers.parallel.base import State, Strategy, lay_out_as_weights, named_state
from trainers.parallel.environment import Place
from trainers.parallel.waiting import Waiting


class Group(Strategy):
    """A strategy whose processes meet in a process group."""

    def __init__(self, place: Place, device: torch.device, comm: Comm) -> None:
        super().__init__(place, device)
        backend = comm.backend if comm.backend != "auto" else ("nccl" if device.type == "cuda" else "gloo")
        if backend == "nccl" and device.type != "cuda":
            raise UserError("comm.backend = 'nccl': nccl needs GPUs and this run is on cpu; use gloo or auto")
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

    def load(self, model: nn.Module, optimizer: Optimizer, state: State) -> None:  # noqa: D102
        state = contiguous(state)
        entries = state.get("optimizer", {}).get("state", {})
        known: list[str] = self.broadcast_object(list(entries))
        if known:  # before the weights: torch takes a step at learning rate 0 to allocate the state
            groups = named_state(model, optimizer)["param_groups"]
            given = {"state": entries, "param_groups": groups} if self.first else {}
            set_optimizer_state_dict(model, optimizer, given, options=_from_first(strict=False))
            lay_out_as_weights(optimizer)
            for name, parameter in model.named_parameters():
                if name not in known:  # no state was saved, since it had no gradient yet
                    optimizer.state.pop(parameter, None)
        set_model_state_dict(model, state.get("model", {}), options=_from_first(strict=True))

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:  # noqa: D102
        set_model_state_dict(model, contiguous(dict(weights)), options=_from_first(strict=False))

    def exposed_seconds(self) -> float:  # noqa: D102
        return self._waiting.read()

    def close(self) -> None:  # noqa: D102
        dist.destroy_process_group()

    def _group(self, tensor: Tensor) -> Any:
        """The group for a tensor: on the CPU the side group, since the main one may know GPUs only."""
        return self._side if tensor.device.type == "cpu" else None


def contiguous(tree: Any) -> Any:
    """A tree whose tensors are in the usual order of memory.

    Torch's broadcast sends a tensor in the order of its memory, and the others receive it in the usual one: of one in
    channels_last order each number would silently take another's place there.
    """
    if isinstance(tree, dict):
        return {key: contiguous(value) for key, value in tree.items()}
    return tree.contiguous() if isinstance(tree, Tensor) else tree


def _from_first(strict: bool) -> StateDictOptions:
    """Options for whole tensors that the first process has and broadcasts."""
    return StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=strict)
