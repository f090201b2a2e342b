"""What the engine needs from a way of training on several processes, and no more."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from trainers.exits import ExitError, UserError
from trainers.parallel.environment import Place
from trainers.parallel.share import share

State = dict[str, Any]  # "model" and "optimizer" -> tree of tensors

# The outcomes of a vote; the largest that any process gave is everybody's.
CONTINUE, SAVE, STOP, LEASE_LOST = 0, 1, 2, 3


class Strategy(ABC):
    """One way of training on `world` processes."""

    name: str
    # Whether a forward is a collective, so that every process must do as many of them as the others, also empty ones.
    lockstep = False

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
    def wrap(self, model: nn.Module) -> nn.Module:
        """Give every process the same weights, and make gradients be combined during backward."""

    def distribute(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """The optimizer as this strategy needs it."""
        return optimizer

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> State:
        """State of model and optimizer as plain whole tensors; every process calls it, the first one gets them."""
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()} if self.first else {}

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors as plain whole ones; every process calls it, the first one gets them."""
        return dict(tensors) if self.first else {}

    def load(self, model: nn.Module, optimizer: Optimizer, state: State) -> None:
        """Take on what `full_state` gave; every process calls it, only the first has something to give."""
        state = self.share(state)
        if state:
            model.load_state_dict(state["model"])
            load_optimizer(optimizer, state["optimizer"])

    def load_tensors(self, into: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Take on what `full_tensors` gave; every process calls it, only the first has something to give."""
        tensors = self.share(dict(tensors))
        for name, tensor in tensors.items():
            into[name].copy_(tensor)

    def accumulating(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Hold for all forwards of a step but the last: gradients add up and nothing is sent."""
        return contextlib.nullcontext()

    def rate_batch(self, batch: int) -> float:
        """Samples by which the linear scaling rule sets the rate of a global batch."""
        return batch

    def loss_weight(self, samples: int, total: int) -> float:
        """Factor for the summed loss of this process's samples, so that the combined gradient is the global mean's."""
        return self.world / total

    def step(self, optimizer: Optimizer, scaler: GradScaler, clip_norm: float = 0.0) -> None:
        """Update the weights with the combined gradient, scaled down to a norm of at most `clip_norm` (0: any)."""
        if clip_norm:
            scaler.unscale_(optimizer)
            clip(optimizer, clip_norm)
        scaler.step(optimizer)
        scaler.update()

    def seed(self, value: int) -> None:
        """Seed this process's random numbers; torch.manual_seed looks at devices that are not used, and takes long."""
        torch.default_generator.manual_seed(value % 2**63)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(value % 2**63)

    def exposed_seconds(self) -> float:
        """Seconds since the last call in which this process did nothing but wait for gradients."""
        return 0.0

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

    def on_first(self, action: Callable[[], Any]) -> Any:
        """Do something on the first process; its result, or the reason it failed, reaches all."""
        value: Any = None
        if self.first:
            try:
                value = action()
            except (UserError, ExitError) as error:
                value = error
        value = self.broadcast_object(value)
        if isinstance(value, UserError | ExitError):
            raise value
        return value

    def share(self, tree: Any) -> Any:
        """The first process's tree of tensors, on all."""
        return share(tree, self.broadcast_object, self.broadcast, self.device)

    def barrier(self) -> None:
        """Wait until every process is here."""
        self.vote(CONTINUE)()

    def is_lost_peer(self, error: BaseException) -> bool:
        """Whether an error means that another process is gone or does not answer."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Leave the group in order."""


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's state; the settings rule over what it says of learning rate, momentum and decay."""
    optimizer.load_state_dict({"state": state["state"], "param_groups": optimizer.state_dict()["param_groups"]})


def clip(optimizer: Optimizer, norm: float) -> None:
    """Scale all gradients down together so that their norm is at most `norm`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    nn.utils.clip_grad_norm_(parameters, norm)
