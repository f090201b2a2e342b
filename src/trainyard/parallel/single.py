"""One process: nothing to share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.parallel.base import Strategy
from trainyard.parallel.environment import Place


class Single(Strategy):
    """Training on one process."""

    def __init__(self, device: torch.device, name: str = "single") -> None:
        super().__init__(Place(), device)
        self.name = name

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: D102
        return model

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
