"""The model, and what trains it: built from the seed, the same on every process."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainyard.config import Config, Plan
from trainyard.data.splits import Data
from trainyard.data.transforms import normalizer
from trainyard.models import factory
from trainyard.models.freeze import freeze
from trainyard.parallel.base import Strategy
from trainyard.training import compiled
from trainyard.training import optimizer as optimizers
from trainyard.training.checkpointing import checkpoint_blocks
from trainyard.training.ema import Ema

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Learner:
    """The model, and what trains it."""

    plain: nn.Module  # the model by itself: its weights are saved, validated and published
    model: nn.Module  # the same as the strategy wraps it, and compiled if asked for; training calls this one
    validated: nn.Module  # the same without the strategy's part in gradients; validation calls this one
    sizes: frozenset[int]  # samples of this process's forwards in a whole step
    optimizer: Optimizer
    scaler: torch.amp.GradScaler  # scales the loss in fp16, else does nothing
    ema: Ema | None
    autocast: torch.autocast  # to be entered for each forward
    normalise: Callable[[Tensor], Tensor]  # uint8 pictures (N, 3, H, W) -> normalised numbers on the device

    def predict(self, pictures: Tensor) -> Tensor:
        """Outputs (N, classes) for uint8 pictures (N, 3, H, W), by the model without the strategy around it."""
        with self.autocast:
            outputs: Tensor = self.validated(self.normalise(pictures))
        return outputs

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Within this context, the model has the weights that are validated and published: the EMA, if there is one."""
        return self.ema.applied() if self.ema else contextlib.nullcontext()


def build_learner(config: Config, plan: Plan, strategy: Strategy, data: Data) -> Learner:
    """Build the model and its optimizer; every process calls it. Raises UserError."""
    device, precision = strategy.device, config.precision
    kept = torch.float64 if precision == "fp64" else torch.float32  # the type of the weights
    plain = factory.build(
        config.model, config.data, config.seed, data.splits.classes,
        dtype=kept, total=strategy.sum if strategy.world > 1 else None,
    )  # fmt: skip
    freeze(plain, config.model.frozen)
    plain.to(device)
    if config.model.in_channels_last(device.type == "cuda"):
        plain.to(memory_format=torch.channels_last)
    if config.model.checkpointing:
        checkpoint_blocks(plain)
    if config.model.compile:
        compiled.name_user()
    called: Any = torch.compile(plain, **config.model.compile_options) if config.model.compile else plain
    model = strategy.wrap(called)
    optimizer = strategy.distribute(optimizers.build(plain, config.optimizer), plain)
    ema = None
    if config.ema.decay:
        warmup = config.schedule.warmup_epochs
        ema = Ema(plain, config.ema, batch=data.order.batch, length=data.length, warmup_epochs=warmup)
    return Learner(
        plain=plain,
        model=model,
        validated=plain if strategy.lockstep else called,  # FSDP compiles the parts of the model
        sizes=compiled.sizes(data.order, plan, strategy.rank, strategy.world),
        optimizer=optimizer,
        scaler=torch.amp.GradScaler(device.type, enabled=precision == "fp16"),
        ema=ema,
        autocast=torch.autocast(device.type, AUTOCAST.get(precision), enabled=precision in AUTOCAST),
        normalise=normalizer(config.data.mean, config.data.std, device, kept),
    )
