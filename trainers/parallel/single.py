"""One process: nothing to share."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.parallel.base import State, Strategy, load_named
from trainers.parallel.environment import Place


class Single(Strategy):
    """Training on one process."""

    def __init__(self, device: torch.device, name: str = "single") -> None:
        super().__init__(Place(), device)
        self.name = name

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: D102
        return model

    def load(self, model: nn.Module, optimizer: Optimizer, state: State) -> None:  # noqa: D102
        load_named(model, optimizer, state["optimizer"]["state"])
        model.load_state_dict(state["model"])

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:  # noqa: D102
        model.load_state_dict(weights, strict=False)

    def sum(self, tensor: Tensor) -> Tensor:  # noqa: D102
        return tensor.clone()

    def vote(self, value: int) -> Callable[[], int]:  # noqa: D102
        return lambda: value

    def broadcast(self, tensor: Tensor) -> Tensor:  # noqa: D102
        return tensor

    def broadcast_object(self, value: Any) -> Any:  # noqa: D102
        return value

    def gather_objects(self, value: Any) -> list[Any]:  # noqa: D102
        return [value]

    def close(self) -> None:  # noqa: D102
        return
