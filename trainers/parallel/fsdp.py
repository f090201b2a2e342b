"""FSDP: every process keeps a shard of each weight and of the optimizer's state, and gathers blocks when it needs them.

torch does not shard weights in another memory format, so `model.channels_last` applies to activations only.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainers.config import Config
from trainers.parallel.base import State, named_state
from trainers.parallel.ddp import wire_dtype
from trainers.parallel.environment import Place
from trainers.parallel.process_group import Group
from trainers.parallel.waiting import Waiting

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
LARGE_LAYER = 1_000_000  # parameters; a layer outside of blocks with more is gathered by itself


class Fsdp(Group):
    """Blocks are gathered for as long as they are needed; gradients are summed into shards."""

    name = "fsdp"
    lockstep = True

    def __init__(self, place: Place, device: torch.device, config: Config) -> None:
        super().__init__(place, device, config.comm)
        self._reshard = config.fsdp.reshard_after_forward
        self._policy = policy(config)

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: D102
        plain = getattr(model, "_orig_mod", model)
        for tensor in (*plain.parameters(), *plain.buffers()):
            tensor.data = self.broadcast(tensor.data)  # contiguous, too
        units = blocks(plain)
        for unit in units:
            if plain is not model:  # compiled block by block: gathering is not part of a graph
                unit.compile()
            fully_shard(unit, mp_policy=self._policy, reshard_after_forward=self._reshard)
        fully_shard(plain, mp_policy=self._policy, reshard_after_forward=self._reshard)
        plain.register_forward_hook(reshard_without_backward)
        if self.device.type == "cpu":
            time_collectives([*units, plain], self._waiting)
        return plain

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> State:  # noqa: D102
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)  # on the first process alone
        if not optimizer.state:  # before the first step; torch would take a step to create it
            return {"model": get_model_state_dict(model, options=whole), "optimizer": named_state(model, optimizer)}
        weights, moments = get_state_dict(model, optimizer, options=whole)
        return {"model": weights, "optimizer": moments}

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:  # noqa: D102
        whole = {}
        for name, tensor in tensors.items():  # one at a time; only the first process keeps them
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.first:
                whole[name] = full.cpu()
        return whole

    @contextlib.contextmanager
    def accumulating(self, model: nn.Module) -> Iterator[None]:  # noqa: D102
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)


def policy(config: Config) -> MixedPrecisionPolicy:
    """The types in which weights travel and gradients are summed; shards are fp32 (fp64 in fp64)."""
    kept = torch.float64 if config.precision == "fp64" else torch.float32
    weights = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    # autocast chooses the types of activations
    return MixedPrecisionPolicy(weights, wire_dtype(config.comm) or kept, cast_forward_inputs=False)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The modules that are gathered one at a time: repeated blocks, and large layers outside of them.

    A block is the outermost module of a class that occurs at least twice and has children. A model without blocks is
    gathered child by child. The rest belongs to the root, which is gathered with the first block.
    """
    kinds = Counter(type(module) for module in model.modules() if any(True for _ in module.children()))
    repeated = {kind for kind, count in kinds.items() if count > 1 and kind not in CONTAINERS}
    found = [part for part in outermost(model, repeated) if count_parameters(part)]
    return found or [child for child in model.children() if count_parameters(child)]


def outermost(module: nn.Module, kinds: set[type[nn.Module]]) -> Iterator[nn.Module]:
    """The modules of these classes that lie in no other such module, and large layers."""
    for child in module.children():
        is_layer = not any(True for _ in child.children())
        if type(child) in kinds or (is_layer and count_parameters(child) >= LARGE_LAYER):
            yield child
        else:
            yield from outermost(child, kinds)


def count_parameters(module: nn.Module) -> int:
    """Number of learned values in a module."""
    return sum(parameter.numel() for parameter in module.parameters())


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
