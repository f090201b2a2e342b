"""The interface of a strategy: all that training needs from DDP, FSDP or Horovod.

docs/architecture.md says how to add one.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from trainyard.core.exits import ExitError, UserError
from trainyard.parallel.environment import Place
from trainyard.parallel.share import share

State = dict[str, Any]  # "model" and, keyed by parameter name, "optimizer" -> tree of tensors

# The outcomes of a vote; the largest that any process gave counts for all.
CONTINUE, SAVE, STOP, LEASE_LOST = 0, 1, 2, 3


class Strategy(ABC):
    """A way of training on `world` processes."""

    name: str
    # Whether a forward is a collective: then all processes must do the same number of them, some perhaps on no samples.
    lockstep = False

    def __init__(self, place: Place, device: torch.device) -> None:
        self.place = place
        self.rank = place.rank
        self.world = place.world
        self.device = device

    @property
    def is_rank0(self) -> bool:
        """Whether this is rank 0, which writes the run's files."""
        return self.rank == 0

    @abstractmethod
    def wrap(self, model: nn.Module) -> nn.Module:
        """Give every process the same weights, and combine gradients during backward; the model to train with."""

    def distribute(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """Return the optimizer as this strategy needs it."""
        return optimizer

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> State:
        """State of model and optimizer as whole tensors; every process calls it, only rank 0 gets them.

        The optimizer's state is keyed by parameter name. The tensors may be those that training works on.
        """
        return {"model": model.state_dict(), "optimizer": named_state(model, optimizer)} if self.is_rank0 else {}

    def full_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors from distributed ones; every process calls it, only rank 0 gets them."""
        return dict(tensors) if self.is_rank0 else {}

    def load(self, model: nn.Module, optimizer: Optimizer, state: State) -> None:
        """Load what `full_state` gave; every process calls it, only rank 0 has something to give.

        Learning rate, momentum and weight decay come from the settings, not from the state.
        """
        state = share(state, self.broadcast_object, self.broadcast, self.device)
        load_named(model, optimizer, state["optimizer"]["state"])
        model.load_state_dict(state["model"])

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load whole tensors, which rank 0 has, into a model; its other tensors stay. Every process calls it."""
        weights = share(dict(weights), self.broadcast_object, self.broadcast, self.device)
        model.load_state_dict(weights, strict=False)

    def accumulating(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """While this holds, gradients are added up and not sent: for all forwards of a step but the last."""
        return contextlib.nullcontext()

    def rate_batch(self, batch: int) -> float:
        """Return samples by which the linear scaling rule sets the rate of a global batch."""
        return batch

    def loss_weight(self, samples: int, total: int) -> float:
        """Factor for the summed loss of this process's samples that makes the combined gradient the global mean's."""
        return self.world / total

    def step(self, optimizer: Optimizer, scaler: GradScaler, clip_norm: float = 0.0) -> None:
        """Update the weights with the combined gradient, scaled down to a norm of at most `clip_norm` (0: any)."""
        if clip_norm:
            scaler.unscale_(optimizer)
            clip(optimizer, clip_norm)
        scaler.step(optimizer)
        scaler.update()

    def seed(self, value: int) -> None:
        """Seed this process's random numbers; torch.manual_seed also seeds unused devices, which takes long."""
        torch.default_generator.manual_seed(value % 2**63)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(value % 2**63)

    def exposed_seconds(self) -> float:
        """Seconds in which this process only waited for gradients, since the last call."""
        return 0.0

    @abstractmethod
    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes; the argument is unchanged."""

    @abstractmethod
    def vote(self, value: int) -> Callable[[], int]:
        """Start finding the largest value that any process gives; the returned function waits for it."""

    @abstractmethod
    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return rank 0's tensor, on all."""

    @abstractmethod
    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's object, on all."""

    @abstractmethod
    def gather_objects(self, value: Any) -> list[Any]:
        """Every process's object, in the order of ranks."""

    def on_rank0(self, action: Callable[[], Any]) -> Any:
        """Run `action` on rank 0; all get its result, or raise its UserError or ExitError."""
        value: Any = None
        if self.is_rank0:
            try:
                value = action()
            except (UserError, ExitError) as error:
                value = error
        value = self.broadcast_object(value)
        if isinstance(value, UserError | ExitError):
            raise value
        return value

    def barrier(self) -> None:
        """Wait until every process has called this."""
        self.vote(CONTINUE)()

    @abstractmethod
    def close(self) -> None:
        """Leave the group of processes."""


def named_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer keyed by parameter name, as torch.distributed.checkpoint.state_dict keys it.

    Not that library's `get_optimizer_state_dict`: on plain parameters it takes 23 to 37 ms for a ResNet-18, in which
    training waits at each checkpoint, and this takes 1 to 2. FSDP uses it, where gathering takes most of the time.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        "state": {names[parameter]: state for parameter, state in optimizer.state.items()},
        "param_groups": [
            {**group, "params": [names[parameter] for parameter in group["params"]]} for group in optimizer.param_groups
        ],
    }


def load_named(model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state that is keyed by parameter name; this process has all of it."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    entries = {index: state[name] for index, name in enumerate(order) if name in state}
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})
    lay_out_as_weights(optimizer)


def lay_out_as_weights(optimizer: Optimizer) -> None:
    """Give an optimizer's state, once it is loaded, the memory format of its parameters.

    Torch's fused optimizers pass through both in the order of memory: with a parameter in channels_last order and a
    moment that was saved in the usual one, each number would silently meet another's.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            alike = isinstance(value, Tensor) and value.shape == parameter.shape
            if alike and value.stride() != parameter.stride():
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def clip(optimizer: Optimizer, norm: float) -> None:
    """Scale all gradients down together so that their norm is at most `norm`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    nn.utils.clip_grad_norm_(parameters, norm)
