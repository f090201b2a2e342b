"""Sums in one order on any number of processes: losses and weights are then the same, bit by bit, on 1, 2, 4, ...

A global batch is cut into a power of two of pieces of `batch.micro` samples. A piece is one forward wherever it is
computed, so a kernel that chooses its order by shape gives the same numbers. The pieces' gradients, and their floating
buffers (BatchNorm's statistics), are added up in pairs, then pairs of pairs, first within a process, then over
processes: one binary tree, of which each process has a branch.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from trainyard.config.sections.running import CommSettings
from trainyard.core.exits import UserError
from trainyard.parallel.base import Strategy
from trainyard.parallel.environment import Place
from trainyard.parallel.pairs import Tree, in_pairs
from trainyard.parallel.process_group import Group
from trainyard.parallel.single import Single


@dataclass(frozen=True)
class SumSettings:
    """How sums are kept in one order."""

    forwards: int  # of a process in a step
    comm: CommSettings
    deterministic: bool  # what a GPU computes


class Exact(Strategy):
    """The part of exact sums that is the same on one process and on many."""

    name = "exact"

    def prepare(self, how: SumSettings) -> None:
        """Set how this process computes; raises UserError where it could not be exact."""
        if self.device.type == "cuda" and not how.deterministic:
            raise UserError("strategy = 'exact' with deterministic = False: a GPU may add in any order; set it to true")
        if self.device.type == "cpu":
            torch.set_num_threads(1)  # as many as on any number of processes: threads cut sums into parts
        self._pieces = how.forwards * self.world
        self._in_fp64 = how.comm.gradients == "fp64"
        self._tree = Tree()
        # Buffers as they were before the step, and those that count as they were after its first piece
        self._before: list[Tensor] = []
        self._counted = torch.zeros(0)

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: D102
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data.copy_(self.broadcast(tensor.data))
        self._parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
        self._buffers = list(model.buffers())
        model.register_forward_pre_hook(self._begin)
        return model

    @contextlib.contextmanager
    def accumulating(self, model: nn.Module) -> Iterator[None]:  # noqa: D102
        yield
        self._add()
        for one in self._parameters.values():
            one.grad = None
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)

    def loss_weight(self, samples: int, total: int) -> float:  # noqa: D102
        return 1 / total  # gradients are added up

    def step(self, optimizer: Optimizer, scaler: GradScaler, clip_norm: float = 0.0) -> None:  # noqa: D102
        self._add()
        _spread(self._over_processes(self._tree.take()), [*self._gradients(), *self._statistics()])
        _spread(self.broadcast(self._counted), self._counts())
        self._before = []
        super().step(optimizer, scaler, clip_norm)

    def _over_processes(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over processes, which this one has to wait for."""
        return tensor

    def _begin(self, model: nn.Module, _: Any) -> None:
        """Before each forward in training: keep what the step begins with."""
        if model.training and not self._before:
            self._before = [buffer.clone() for buffer in self._buffers]

    def _gradients(self) -> list[Tensor]:
        """Return the gradient of each parameter; raises UserError where one has none."""
        found = {name: one.grad for name, one in self._parameters.items()}
        if missing := [name for name, gradient in found.items() if gradient is None]:
            raise UserError(f"strategy = 'exact': {missing[0]} has no gradient in this step; name it in model.freeze")
        return [gradient for gradient in found.values() if gradient is not None]

    def _statistics(self) -> list[Tensor]:
        return [buffer for buffer in self._buffers if buffer.is_floating_point()]

    def _counts(self) -> list[Tensor]:
        return [buffer for buffer in self._buffers if not buffer.is_floating_point()]

    def _add(self) -> None:
        """Put a piece's gradients and statistics into the tree, as one tensor."""
        if self._tree.empty:
            self._counted = _flat(self._counts())
        flat = _flat([*self._gradients(), *(one / self._pieces for one in self._statistics())])
        self._tree.add(flat.double() if self._in_fp64 else flat)


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([one.flatten() for one in tensors]) if tensors else torch.zeros(0)


def _spread(flat: Tensor, tensors: list[Tensor]) -> None:
    """Copy into tensors what `_flat` would make of them."""
    for tensor, part in zip(tensors, torch.split(flat, [one.numel() for one in tensors]), strict=True):
        tensor.copy_(part.view(tensor.shape))


class ExactSingle(Exact, Single):
    """All pieces on one process."""

    def __init__(self, device: torch.device, how: SumSettings) -> None:
        Single.__init__(self, device, self.name)
        self.prepare(how)


class ExactGroup(Exact, Group):
    """Each process has as many pieces, one after the other in the order of ranks."""

    def __init__(self, place: Place, device: torch.device, how: SumSettings) -> None:
        Group.__init__(self, place, device, how.comm)
        self.prepare(how)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all processes in pairs: each process adds up its part of the numbers, and all get all parts."""
        group, length = self._group(tensor), -(-tensor.numel() // self.world)
        sent = tensor.new_zeros(length * self.world)
        sent[: tensor.numel()] = tensor.flatten()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        dist.all_gather_into_tensor(sent, in_pairs(torch.split(received, length)), group=group)
        return sent[: tensor.numel()].view(tensor.shape)

    def _over_processes(self, tensor: Tensor) -> Tensor:
        self._waiting.begin()
        result = self.sum(tensor)
        self._waiting.end()
        return result
