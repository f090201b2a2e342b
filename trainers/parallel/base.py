"""What the engine needs from a way of training on several processes, and no more."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from trainers.parallel.environment import Place

# The outcomes of a vote; the largest that any process gave is everybody's.
CONTINUE, STOP, LEASE_LOST = 0, 1, 2


class Strategy(ABC):
    """One way of training on `world` processes."""

    name: str

    def __init__(self, place: Place, device: torch.device) -> None:
        self.place = place
        self.rank = place.rank
        self.world = place.world
        self.device = device

    @property
    def first(self) -> bool:
        """Whether this process writes the run's files."""
        return self.rank == 0

    @abstractmethod
    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Give every process the same start, and make gradients be combined during backward."""

    def accumulating(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Hold for all forwards of a step but the last: gradients add up and nothing is sent."""
        return contextlib.nullcontext()

    def loss_weight(self, samples: int, total: int) -> float:
        """Factor for the summed loss of this process's samples, so that the combined gradient is the global mean's."""
        return self.world / total

    def step(self, optimizer: Optimizer, scaler: GradScaler) -> None:
        """Update the weights with the combined gradient."""
        scaler.step(optimizer)
        scaler.update()

    @abstractmethod
    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes; the argument is left as it is."""

    @abstractmethod
    def vote(self, value: int) -> Callable[[], int]:
        """Start finding the largest value that any process gave; the function returned waits for it."""

    @abstractmethod
    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor, on all."""

    @abstractmethod
    def broadcast_object(self, value: Any) -> Any:
        """The first process's object, on all."""

    @abstractmethod
    def gather_objects(self, value: Any) -> list[Any]:
        """Every process's object, in the order of ranks."""

    def barrier(self) -> None:
        """Wait until every process is here."""
        self.vote(CONTINUE)()

    def is_lost_peer(self, error: BaseException) -> bool:
        """Whether an error means that another process is gone or does not answer."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Leave the group in order."""
