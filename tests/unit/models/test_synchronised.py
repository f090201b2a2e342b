"""BatchNorm over all processes with SyncBatchNorm's kernels: here with their formulas, on a GPU with themselves.

Processes are threads that sum with each other. The results are compared with the BatchNorm that needs no kernels.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import patience
from trainyard.models.batch_norm import BatchNorm

CHANNELS = 5


def spread(vector: Tensor, x: Tensor) -> Tensor:
    return vector.view(1, -1, *[1] * (x.dim() - 2)).to(torch.float32)


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x.float(), [0, *range(2, x.dim())], correction=0)
    return mean, (variance + eps).rsqrt()


def elemt(x: Tensor, weight: Any, bias: Any, mean: Tensor, inverse: Tensor, eps: float) -> Tensor:  # noqa: PLR0917
    out = (x.float() - spread(mean, x)) * spread(inverse, x)
    return (out if weight is None else out * spread(weight, x) + spread(bias, x)).to(x.dtype)


def backward_reduce(gradient: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Any, *_: bool) -> Any:
    dims = [0, *range(2, x.dim())]
    first = gradient.float().sum(dims)
    second = (gradient.float() * (x.float() - spread(mean, x))).sum(dims)
    return (first, second, second * inverse, first) if weight is not None else (first, second, None, None)


def backward_elemt(  # noqa: PLR0917
    gradient: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Any, first: Tensor, second: Tensor, count: Any
) -> Tensor:
    norm = 1.0 / count.sum()
    scale = inverse if weight is None else inverse * weight
    centred = (x.float() - spread(mean, x)) * spread(inverse.square() * second * norm, x)
    return ((gradient.float() - spread(first * norm, x) - centred) * spread(scale, x)).to(x.dtype)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulas of torch's kernels (aten/src/ATen/native/cuda/Normalization.cuh), which exist for GPUs alone."""
    found = {"stats": stats, "elemt": elemt, "backward_reduce": backward_reduce, "backward_elemt": backward_elemt}
    for name, function in found.items():
        monkeypatch.setattr(torch, f"batch_norm_{name}", function)


class Together:
    """Threads that sum tensors with each other, as processes do."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world, timeout=patience.IDLE)
        self._given: dict[int, Tensor] = {}
        self.calls = 0

    def total(self, rank: int) -> Callable[[Tensor], Tensor]:
        def summed(tensor: Tensor) -> Tensor:
            self._given[rank] = tensor
            self._barrier.wait()
            result = torch.stack([self._given[rank] for rank in sorted(self._given)]).sum(0)
            self.calls += rank == 0
            self._barrier.wait()
            return result

        return summed


Found = dict[str, Tensor]


def trained(parts: list[Tensor], by_kernels: bool, affine: bool = True) -> tuple[list[Found], int]:
    """Two steps of a layer on each process's samples: outputs, gradients, statistics; and the sums of each process."""
    together, found = Together(len(parts)), [Found() for _ in parts]
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            layer = BatchNorm.like(torch.nn.BatchNorm2d(CHANNELS, affine=affine), together.total(rank))
            layer.to(parts[rank].device)
            if affine:
                with torch.no_grad():
                    layer.weight.copy_(torch.linspace(0.5, 2, CHANNELS))
                    layer.bias.copy_(torch.linspace(-1, 1, CHANNELS))
            forward = layer._global_by_kernels if by_kernels else layer._global
            for step in (1.0, 2.0):
                x = (parts[rank] * step).detach().requires_grad_()
                out = forward(x, together.total(rank))
                (out.float() * torch.arange(out.numel(), device=out.device).view_as(out).sin()).sum().backward()
                assert x.grad is not None
                found[rank] |= {f"out {step}": out.detach(), f"gradient {step}": x.grad}
                assert out.stride() == x.stride()
            found[rank] |= {name: value.clone() for name, value in layer.state_dict().items()}
            found[rank] |= {f"of {name}": p.grad for name, p in layer.named_parameters() if p.grad is not None}
        except BaseException as error:
            errors.append(error)
            together._barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found, together.calls


def samples(*counts: int, device: str = "cpu", dtype: torch.dtype = torch.float32, last: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    form = torch.channels_last if last else torch.contiguous_format
    return [
        (3 * torch.randn(count, CHANNELS, 4, 3, generator=generator) + 7).to(device, dtype).to(memory_format=form)
        for count in counts
    ]


CASES = [(4,), (4, 4), (5, 2, 1), (0, 3, 2), (3, 0), (0, 0)]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("counts", CASES)
def test_the_same_as_without_kernels_also_where_a_process_has_no_samples(counts: tuple[int, ...]) -> None:
    compare(samples(*counts), 1e-5)


@pytest.mark.usefixtures("kernels")
def test_in_bf16_in_channels_last_and_without_scale() -> None:
    compare(samples(4, 3, dtype=torch.bfloat16), 3e-2)
    compare(samples(4, 3, last=True), 1e-5)
    compare(samples(4, 3), 1e-5, affine=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels themselves need a GPU")
@pytest.mark.parametrize("counts", CASES)
def test_the_kernels_themselves(counts: tuple[int, ...]) -> None:
    compare(samples(*counts, device="cuda"), 1e-5)
    compare(samples(*counts, device="cuda", last=True), 1e-5)
    compare(samples(*counts, device="cuda", dtype=torch.bfloat16), 3e-2)


def compare(parts: list[Tensor], bound: float, affine: bool = True) -> None:
    expected, _ = trained(parts, by_kernels=False, affine=affine)
    found, calls = trained(parts, by_kernels=True, affine=affine)
    assert calls == 2 * 2  # steps; one sum in each direction
    for one, other in zip(expected, found, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(
                other[name], value, rtol=bound, atol=bound, msg=lambda text, n=name: f"{n}: {text}"
            )
            assert other[name].isfinite().all()
