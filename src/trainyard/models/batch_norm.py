"""BatchNorm over one process's samples, or over those of all processes; it replaces PyTorch's and timm's."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from trainyard.core.exits import UserError
from trainyard.models.synchronised import Sum, normalise

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _Mode(threading.local):
    """The effect of a thread's forwards on statistics; backward runs in a thread per GPU."""

    untracked = False
    nothing = False


_mode = _Mode()


def counting_nothing() -> contextlib.AbstractContextManager[None]:
    """Within this context a forward in training counts as one of no samples, whatever it is given."""
    return _set(nothing=True)


def computed_again() -> contextlib.AbstractContextManager[None]:
    """For a forward of this thread that is computed again, for its backward: the running statistics stay."""
    return _set(untracked=True, nothing=_mode.nothing)


@contextlib.contextmanager
def _set(**flags: bool) -> Iterator[None]:
    before = {name: getattr(_mode, name) for name in flags}
    for name, value in flags.items():
        setattr(_mode, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_mode, name, value)


def tracks() -> bool:
    """Whether a forward in training updates the running statistics; what is compiled always does, once."""
    return torch.compiler.is_compiling() or not _mode.untracked


def counts_nothing() -> bool:
    """Whether a forward in training counts as one of no samples; what is compiled always has some."""
    return not torch.compiler.is_compiling() and _mode.nothing


def replace_batch_norm(model: nn.Module, total: Sum | None) -> None:
    """Replace PyTorch's BatchNorm by ours, keeping names, weights and statistics; raises UserError."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if not isinstance(child, PLAIN):
                continue
            if type(child) in PLAIN or hasattr(child, "act"):
                setattr(module, name, BatchNorm.like(child, total))
            elif total is not None:
                raise UserError(
                    f"model.batch_norm = 'global': this model's {name} is a {type(child).__name__}, whose statistics "
                    "cannot be taken over all processes; set it to local"
                )


def leave_uncompiled() -> None:
    """Keep the GPU's kernels out of programs that torch.compile builds, before it builds one.

    As a decorator, `torch.compiler.disable` would import the compiler in each run: a second of CPU time.
    """
    disable: Any = torch.compiler.disable
    BatchNorm._global_by_kernels = disable(BatchNorm._global_by_kernels)  # type: ignore[method-assign]


def share_of_start(model: nn.Module) -> float:
    """Return the share of BatchNorm's running statistics that is still their start (mean 0, variance 1); 0 without any.

    Each forward in training leaves 1 - momentum of it. Only of a model that was not pretrained does it mean anything.
    """
    norms = [one for one in model.modules() if isinstance(one, _BatchNorm)]
    tracked = [(one.momentum, one.num_batches_tracked) for one in norms]
    found = [(1 - momentum, count) for momentum, count in tracked if momentum is not None and count is not None]
    return max((kept ** int(count) for kept, count in found), default=0.0)


class BatchNorm(_BatchNorm):
    """BatchNorm over one process's samples, or over those of all processes, of which some may have none.

    PyTorch's BatchNorm refuses a single value per channel, which a small last batch can bring; its SyncBatchNorm needs
    GPUs, whose kernels are used there (synchronised.py). timm's BatchNorm also applies dropout and an activation
    (`drop`, `act`), and so does its replacement.
    """

    total: Sum | None

    @classmethod
    def like(cls, other: _BatchNorm, total: Sum | None) -> "BatchNorm":
        """Return a replacement that shares another's parameters, buffers and children."""
        result = cls(other.num_features, other.eps, other.momentum, other.affine, other.track_running_stats)
        result.weight, result.bias = other.weight, other.bias
        result.running_mean, result.running_var = other.running_mean, other.running_var
        result.num_batches_tracked = other.num_batches_tracked
        for name, part in other.named_children():
            result.add_module(name, part)
        result.total = total
        return result.train(other.training)

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept any number of dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; in training, update the running statistics too."""
        x = self._normalised(x)
        for part in self.children():
            x = part(x)
        return x

    def _normalised(self, x: Tensor) -> Tensor:
        if self.training and counts_nothing():
            return self._of_nothing(x)
        if self.training and self.total is not None:
            return self._over_processes(x, self.total)
        if self.training and x.numel() < 2 * x.size(1):
            # Fewer than two values per channel have no variance: each is its own mean, so the output is the shift.
            # The running statistics stay as they are.
            return self._scaled(x - x).to(x.dtype)
        if self.training and not tracks():
            return self._untracked(x)
        statistics: Tensor | None = self.running_mean
        if statistics is not None and self.weight is not None and self.weight.dtype != statistics.dtype:
            return self._with_own_statistics(x)
        result: Tensor = super().forward(x)
        return result

    def _of_nothing(self, x: Tensor) -> Tensor:
        """Return the shift, for samples that count nothing. Sums over processes take place, without them.

        They come first here, so that backward comes to scale and shift before them, as it does on processes that have
        samples: the order in which all processes send gradients and sums must be the same.
        """
        nothing = 0.0 if self.total is None else self._over_processes(x[:0], self.total).sum()
        return self._scaled(x - x).to(x.dtype) + nothing

    def _over_processes(self, x: Tensor, total: Sum) -> Tensor:
        if x.is_cuda and x.dtype != torch.float64:  # fp64 is for exact checks
            return self._global_by_kernels(x, total)
        return self._global(x, total)

    def _in_type_of_statistics(self) -> tuple[Tensor | None, Tensor | None]:
        """Scale and shift in the statistics' type, which PyTorch needs; FSDP may have gathered them in 16 bits."""
        if self.weight is None or self.running_mean is None:
            return self.weight, self.bias
        return self.weight.to(self.running_mean.dtype), self.bias.to(self.running_mean.dtype)

    def _untracked(self, x: Tensor) -> Tensor:
        """Compute the forward again; what is saved for backward must be alike, so statistics are changed too."""
        mean, variance = (None if part is None else part.clone() for part in (self.running_mean, self.running_var))
        weight, bias = self._in_type_of_statistics()
        return functional.batch_norm(x, mean, variance, weight, bias, True, 0.0, self.eps)

    def _with_own_statistics(self, x: Tensor) -> Tensor:
        tracked = self.num_batches_tracked
        if self.training and tracked is not None:
            tracked.add_(1)
        share = self.momentum if self.momentum is not None or tracked is None else 1 / float(tracked)
        weight, bias = self._in_type_of_statistics()
        return functional.batch_norm(
            x, self.running_mean, self.running_var, weight, bias, self.training, share or 0.0, self.eps
        )

    def _global_by_kernels(self, x: Tensor, total: Sum) -> Tensor:
        weight, bias = (None if part is None else part.float() for part in (self.weight, self.bias))
        out, found = normalise(x, weight, bias, self.eps, total)
        self._track(*found)
        return out

    def _global(self, x: Tensor, total: Sum) -> Tensor:
        values = x if x.dtype == torch.float64 else x.float()
        dims = [0, *range(2, x.dim())]
        count = x.new_full((1,), x.numel() / x.size(1), dtype=values.dtype)
        sums = _TotalOverProcesses.apply(torch.cat([values.sum(dims), count]), total)
        # In a small last batch no process may have a sample left for a forward: avoid 0 / 0.
        any_ = sums[-1].detach() > 0
        count = sums[-1].detach().clamp(min=1)
        mean = sums[:-1] / count
        centred = values - mean.view(_shape(x))
        variance = _TotalOverProcesses.apply(centred.square().sum(dims), total) / count
        self._track(mean.detach(), variance.detach(), count, any_)
        return self._scaled(centred * (variance + self.eps).rsqrt().view(_shape(x))).to(x.dtype)

    def _scaled(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return x
        return x * self.weight.view(_shape(x)) + self.bias.view(_shape(x))

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor, any_: Tensor) -> None:
        """Update the running statistics after a forward, if any process had a sample in it."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None or not tracks():
            return
        self.num_batches_tracked.add_(any_)
        momentum = self.momentum if self.momentum is not None else 1 / self.num_batches_tracked.clamp(min=1)
        share = any_.to(self.running_mean.dtype) * momentum
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
    """Return the shape in which a vector per channel broadcasts over x."""
    return [1, -1] + [1] * (x.dim() - 2)
