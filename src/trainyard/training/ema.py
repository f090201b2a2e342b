"""An exponential moving average of the model's parameters and floating buffers, which is validated and published.

Each process averages its own parts of distributed parameters.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainyard.config.sections.learning import EmaSettings
from trainyard.data.sampler import Length
from trainyard.parallel.sharding import local_parts


def decay_of(settings: EmaSettings, global_batch: int, epochs: float) -> float:
    """Return the decay of one update.

    With `ema.adjust: none` it is `ema.decay`. With `torchvision` the weight of a new value, 1 - decay, is multiplied by
    global_batch * every_steps / epochs, and is 1 at most: `decay` is then free of batch size and length of the run
    (torchvision, references/classification/train.py).
    """
    new = 1.0 - settings.decay
    if settings.adjust == "torchvision":
        new *= global_batch * settings.every_steps / epochs
    return 1.0 - min(1.0, new)


class Ema:
    """The averaged values of a model, under the names that its state dict has.

    Create it from the plain model, after the strategy has given the model its final parameters.
    """

    def __init__(self, model: nn.Module, settings: EmaSettings, *, batch: int, length: Length, warmup_epochs: float):
        """Start from the model's values. `batch` is the global batch; until the warmup is over, values are copied."""
        self.every, self.per_epoch = settings.every_steps, length.steps_per_epoch
        self.decay = decay_of(settings, batch, length.steps / length.steps_per_epoch)
        self.warmup = round(warmup_epochs * length.steps_per_epoch)
        self.live = {
            name: value.detach() for name, value in model.state_dict(keep_vars=True).items() if _averaged(value)
        }
        self.values = {name: value.clone() for name, value in self.live.items()}

    @torch.no_grad()
    def restart(self) -> None:
        """Restart from the model's present values."""
        torch._foreach_copy_(local_parts(list(self.values.values())), local_parts(list(self.live.values())))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the model's values after a step (counted from 0) to the average, every `every_steps` steps."""
        position = step % self.per_epoch
        if position % self.every:
            return
        old, new = local_parts(list(self.values.values())), local_parts(list(self.live.values()))
        if self._first_after_warmup(step):
            torch._foreach_copy_(old, new)
        else:
            torch._foreach_lerp_(old, new, 1.0 - self.decay)

    def _first_after_warmup(self, step: int) -> bool:
        """Whether a step is within the warmup, or the first update after it: the average begins there."""
        within, rest = divmod(self.warmup, self.per_epoch)
        due = -(-rest // self.every) * self.every
        first = within * self.per_epoch + due if due < self.per_epoch else (within + 1) * self.per_epoch
        return step <= first

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averaged values."""
        return self.values

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within this context, the model has the averaged values; afterwards its own again."""
        live, averaged = local_parts(list(self.live.values())), local_parts(list(self.values.values()))
        with torch.no_grad():
            own = [value.clone() for value in live]
            torch._foreach_copy_(live, averaged)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(live, own)


def _averaged(value: Tensor) -> bool:
    """Parameters and floating buffers; a count of batches has no average."""
    return isinstance(value, Tensor) and value.is_floating_point()
