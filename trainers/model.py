"""The model: from torchvision by name, or from the user's own function; initialisation and BatchNorm as configured.

Parameter and buffer names stay the model's own, so that what is saved loads into the plain model.
"""

import difflib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainers.exits import UserError
from trainers.settings import Config

Sum = Callable[[Tensor], Tensor]


def build(config: Config, classes: int, dtype: torch.dtype, total: Sum | None) -> nn.Module:
    """Build the model from the seed; `total` sums a tensor over processes, for global BatchNorm."""
    torch.manual_seed(config.seed)
    model = create(config.model.name, classes)
    if config.model.conv_init != "default":
        init_convolutions(model, config.model.conv_init)
    if config.model.zero_init_last_bn:
        zero_init_last_bn(model)
    if config.model.head_init_std:
        init_head(model, config.model.head_init_std)
    if config.model.pretrained:
        load_pretrained(model, Path(config.model.pretrained))
    replace_batch_norm(model, total if config.model.batch_norm == "global" else None)
    return model.to(dtype)


def create(name: str, classes: int) -> nn.Module:
    """Call the function that a model name stands for."""
    kind, _, rest = name.partition(":")
    if not rest or kind == "torchvision":
        return _from_torchvision(rest or kind, classes)
    try:
        function = getattr(importlib.import_module(kind), rest)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"model.name = {name!r}: cannot be imported ({error}); it must be `package.module:function` on PYTHONPATH"
        ) from error
    model = function(num_classes=classes)
    if not isinstance(model, nn.Module):
        raise UserError(f"model.name = {name!r}: returned {type(model).__name__}; it must return a torch.nn.Module")
    return model


def _from_torchvision(name: str, classes: int) -> nn.Module:
    import torchvision

    models: Any = torchvision.models

    known = models.list_models(module=models)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {', '.join(close)}?" if close else "see torchvision.models.list_models()"
        raise UserError(f"model.name = {name!r}: torchvision has no such classification model; {hint}")
    model: nn.Module = models.get_model(name, weights=None, num_classes=classes)
    return model


def zero_init_last_bn(model: nn.Module) -> None:
    """Start each residual block as the identity: the scale of its last BatchNorm is 0."""
    from torchvision.models.resnet import BasicBlock, Bottleneck

    blocks = [module for module in model.modules() if isinstance(module, BasicBlock | Bottleneck)]
    if not blocks:
        raise UserError(
            "model.zero_init_last_bn = True: this model has no torchvision residual blocks; set it to false"
        )
    for block in blocks:
        last: Any = block.bn3 if isinstance(block, Bottleneck) else block.bn2
        nn.init.zeros_(last.weight)


def init_convolutions(model: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    """Start every convolution from He's normal distribution."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")


def init_head(model: nn.Module, std: float) -> None:
    """Start the last linear layer from a normal distribution, its bias from 0."""
    heads = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not heads:
        raise UserError("model.head_init_std: this model has no linear layer; set it to 0")
    nn.init.normal_(heads[-1].weight, std=std)
    nn.init.zeros_(heads[-1].bias)


def load_pretrained(model: nn.Module, path: Path) -> None:
    """Load a state dict; every name and shape must fit."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state)
    except (OSError, RuntimeError, ValueError, AttributeError) as error:
        raise UserError(
            f"model.pretrained = {str(path)!r}: {' '.join(str(error).split())[:400]}; it must be a state dict of "
            "this very model"
        ) from error


def replace_batch_norm(model: nn.Module, total: Sum | None) -> None:
    """Put our BatchNorm in the place of PyTorch's, keeping names, weights and statistics."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                setattr(module, name, BatchNorm.like(child, total))


class BatchNorm(_BatchNorm):
    """BatchNorm over this process's samples or over those of all processes, also where a process has none.

    PyTorch's own refuses a single value per channel, which a ragged batch can bring; its SyncBatchNorm needs GPUs.
    """

    total: Sum | None

    @classmethod
    def like(cls, other: _BatchNorm, total: Sum | None) -> "BatchNorm":
        """One that shares the parameters and buffers of another."""
        result = cls(other.num_features, other.eps, other.momentum, other.affine, other.track_running_stats)
        result.weight, result.bias = other.weight, other.bias
        result.running_mean, result.running_var = other.running_mean, other.running_var
        result.num_batches_tracked = other.num_batches_tracked
        result.total = total
        return result

    def _check_input_dim(self, x: Tensor) -> None:
        """Any number of dimensions will do."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; in training, update the running statistics too."""
        if self.training and self.total is not None:
            return self._global(x, self.total)
        if self.training and x.numel() < 2 * x.size(1):
            # Fewer than two values per channel have no variance: each is its own mean, and the shift remains. The
            # running statistics learn nothing from them.
            shifted = (x - x) * self.weight.view(_shape(x)) + self.bias.view(_shape(x))
            return shifted.to(x.dtype)
        result: Tensor = super().forward(x)
        return result

    def _global(self, x: Tensor, total: Sum) -> Tensor:
        values = x if x.dtype == torch.float64 else x.float()
        dims = [0, *range(2, x.dim())]
        count = x.new_full((1,), x.numel() / x.size(1), dtype=values.dtype)
        sums = _TotalOverProcesses.apply(torch.cat([values.sum(dims), count]), total)
        count, mean = sums[-1].detach(), sums[:-1] / sums[-1]
        centred = values - mean.view(_shape(x))
        variance = _TotalOverProcesses.apply(centred.square().sum(dims), total) / count
        self._track(mean.detach(), variance.detach(), count)
        result = centred * (variance + self.eps).rsqrt().view(_shape(x))
        result = result * self.weight.view(_shape(x)) + self.bias.view(_shape(x))
        normalised: Tensor = result.to(x.dtype)
        return normalised

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class _TotalOverProcesses(torch.autograd.Function):
    """Sum over processes whose gradient is summed over them too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, total: Sum) -> Tensor:
        ctx.total = total
        result: Tensor = total(tensor)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        result: Tensor = ctx.total(grads[0].contiguous())
        return result, None


def _shape(x: Tensor) -> list[int]:
    """The shape that lines a per-channel vector up with the x."""
    return [1, -1] + [1] * (x.dim() - 2)
