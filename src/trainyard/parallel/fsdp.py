"""FSDP: every process keeps a shard of each weight and of the optimizer's state, and gathers blocks when it needs them.

torch does not shard weights in another memory format, so `model.channels_last` applies to activations only.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainyard.config.sections.running import CommSettings, FsdpSettings
from trainyard.core.exits import pinning
from trainyard.parallel.base import State, lay_out_as_weights, named_state
from trainyard.parallel.blocks import blocks
from trainyard.parallel.ddp import wire_dtype
from trainyard.parallel.environment import Place
from trainyard.parallel.process_group import Group
from trainyard.parallel.waiting import Waiting


class Fsdp(Group):
    """Blocks are gathered for as long as they are needed; gradients are summed into shards."""

    name = "fsdp"
    lockstep = True

    def __init__(
        self,
        place: Place,
        device: torch.device,
        comm: CommSettings,
        settings: FsdpSettings,
        *,
        precision: str,
        compile_options: dict[str, Any],
    ) -> None:
        """`compile_options` are those of torch.compile, for models that are compiled."""
        super().__init__(place, device, comm)
        # on the configured device: by itself torch takes a GPU wherever there is one
        mesh = init_device_mesh(device.type, (place.world,))
        self._sharding: dict[str, Any] = {
            "mesh": mesh, "mp_policy": policy(precision, comm), "reshard_after_forward": settings.reshard_after_forward,
        }  # fmt: skip
        self._compile_options = compile_options

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: D102
        plain = getattr(model, "_orig_mod", model)
        for tensor in (*plain.parameters(), *plain.buffers()):
            tensor.data = self.broadcast(tensor.data)  # contiguous, too
        units = blocks(plain)
        for unit in units:
            if plain is not model:  # compiled block by block: gathering is not part of a graph
                unit.compile(**self._compile_options)
            fully_shard(unit, **self._sharding)
        fully_shard(plain, **self._sharding)
        plain.register_forward_hook(reshard_without_backward)
        if self.device.type == "cpu":
            time_collectives([*units, plain], self._waiting)
        return plain

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> State:  # noqa: D102
        whole = self._gathered({"model": model.state_dict(), "optimizer": named_state(model, optimizer)})
        return whole if self.is_rank0 else {}

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:  # noqa: D102
        whole: dict[str, Tensor] = self._gathered(dict(tensors))
        return whole if self.is_rank0 else {}

    def load(self, model: nn.Module, optimizer: Optimizer, state: State) -> None:  # noqa: D102
        state = contiguous(state)
        entries = state.get("optimizer", {}).get("state", {})
        known: list[str] = self.broadcast_object(list(entries))
        if known:  # before the weights: torch takes a step at learning rate 0 to allocate the state
            groups = named_state(model, optimizer)["param_groups"]
            given = {"state": entries, "param_groups": groups} if self.is_rank0 else {}
            set_optimizer_state_dict(model, optimizer, given, options=_from_rank0(strict=False))
            lay_out_as_weights(optimizer)
            for name, parameter in model.named_parameters():
                if name not in known:  # no state was saved, since it had no gradient yet
                    optimizer.state.pop(parameter, None)
        set_model_state_dict(model, state.get("model", {}), options=_from_rank0(strict=True))

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:  # noqa: D102
        set_model_state_dict(model, contiguous(dict(weights)), options=_from_rank0(strict=False))

    def _gathered(self, tree: Any) -> Any:
        """Get a tree of tensors with whole ones in host memory on rank 0, and without meaning on the others.

        A GPU gathers one tensor after the other and copies it to pinned memory meanwhile; it is waited for once.
        """
        whole = gather_tree(tree, keep=self.is_rank0)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return whole

    @contextlib.contextmanager
    def accumulating(self, model: nn.Module) -> Iterator[None]:  # noqa: D102
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)


def contiguous(tree: Any) -> Any:
    """Return a tree whose tensors are in the usual order of memory.

    Torch's broadcast sends a tensor in the order of its memory, and the others receive it in the usual one: of one in
    channels_last order each number would silently take another's place there.
    """
    if isinstance(tree, dict):
        return {key: contiguous(value) for key, value in tree.items()}
    return tree.contiguous() if isinstance(tree, Tensor) else tree


def _from_rank0(strict: bool) -> StateDictOptions:
    """Options for whole tensors that rank 0 has and broadcasts."""
    return StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=strict)


def gather_tree(tree: Any, keep: bool) -> Any:
    """Get a tree of tensors, of which distributed ones are gathered; those that are not to be kept are freed at once.

    On a GPU the copies to pinned memory are only begun.
    """
    if isinstance(tree, dict):
        return {key: gather_tree(value, keep) for key, value in tree.items()}
    if not isinstance(tree, DTensor):
        return tree
    full = tree.full_tensor()
    if not keep:
        return None
    if not full.is_cuda:
        return full
    with pinning():
        kept = torch.empty_like(full, device="cpu", pin_memory=True)
    return kept.copy_(full, non_blocking=True)


def policy(precision: str, comm: CommSettings) -> MixedPrecisionPolicy:
    """Return the types in which weights travel and gradients are summed; shards are fp32 (fp64 in fp64)."""
    kept = torch.float64 if precision == "fp64" else torch.float32
    weights = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    # autocast chooses the types of activations
    return MixedPrecisionPolicy(weights, wire_dtype(comm) or kept, cast_forward_inputs=False)


def reshard_without_backward(module: nn.Module, *_: Any) -> None:
    """Free gathered weights after a forward without backward, so that the next forward gathers current ones."""
    if not torch.is_grad_enabled():
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()


def time_collectives(parts: list[nn.Module], waiting: Waiting) -> None:
    """Time how long a module waits for others on the CPU, where gathering and summing do not overlap with computing.

    A torch that takes no custom collectives is not timed.
    """
    for part in parts:
        if isinstance(part, FSDPModule) and hasattr(part, "set_custom_all_gather"):
            fetch: Any = Timed(gather, waiting)
            reduce: Any = Timed(reduce_scatter, waiting)
            part.set_custom_all_gather(fetch)
            part.set_custom_reduce_scatter(reduce)


class Timed:
    """A custom collective for FSDP that counts its time as waiting."""

    def __init__(self, collective: Callable[..., Any], waiting: Waiting) -> None:
        self._collective, self._waiting = collective, waiting

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate the output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **options: Any) -> Any:
        """Run the collective and wait for it."""
        self._waiting.begin()
        work = self._collective(output_tensor, input_tensor, **options)
        self._waiting.end()
        return work


gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
