"""What only a GPU runs of global BatchNorm, of normalisation, and of NCCL: compared with plain forms of the same."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.gpu.part import Part, main
from benchmarks.gpu.parts.groups import joined
from trainyard.data.transforms import normalizer
from trainyard.models.batch_norm import BatchNorm, counting_nothing
from trainyard.parallel import probe

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def work(part: Part) -> None:
    """Each by itself; without a GPU in the forms that a processor has."""
    device = torch.device("cuda" if part.gpu else "cpu")
    for kind in BOUNDS:
        for order in (torch.contiguous_format, torch.channels_last):
            name = f"global BatchNorm, {str(kind).removeprefix('torch.')}, {str(order).removeprefix('torch.')}"
            with part.guarded(name):
                batch_norm(part, name, device, kind, order)
    with part.guarded("normalisation"):
        normalisation(part, device)
    with part.guarded("NCCL"):
        collectives(part, device)


def batch_norm(part: Part, name: str, device: torch.device, kind: torch.dtype, order: torch.memory_format) -> None:
    """Output, gradients and statistics beside torch's own in fp64; then forwards that count nothing."""
    torch.manual_seed(1)
    plain = nn.BatchNorm2d(32).to(device).double()
    ours = BatchNorm.like(copy.deepcopy(plain).float(), lambda tensor: tensor.clone())
    x = torch.randn(16, 32, 14, 14, device=device).to(kind).to(memory_format=order)
    inputs = [x.double().requires_grad_(), x.clone().requires_grad_()]
    weight = torch.randn_like(x, dtype=torch.float32)
    for model, one in zip((plain, ours), inputs, strict=True):
        (model(one) * weight.to(one.dtype)).double().sum().backward()
    pairs = {
        "input's gradient": (inputs[1].grad, inputs[0].grad), "weight's": (ours.weight.grad, plain.weight.grad),
        "mean": (ours.running_mean, plain.running_mean), "variance": (ours.running_var, plain.running_var),
    }  # fmt: skip
    far = {key: distance(found, expected) for key, (found, expected) in pairs.items()}
    before = [buffer.clone() for buffer in ours.buffers()]
    with counting_nothing():
        ours(x[:1].detach().requires_grad_()).sum().backward()
    ours(x[:0].detach().requires_grad_()).sum().backward()
    same = all(torch.equal(*pair) for pair in zip(before, ours.buffers(), strict=True))
    text = ", ".join(f"{key} {value:.1e}" for key, value in far.items()) + " from fp64's"
    part.check(name, same, text, bounds={"far": (None, BOUNDS[kind])}, far=max(far.values()))


def distance(found: Tensor | None, expected: Tensor | None) -> float:
    """Return the largest difference, as a share of the largest value."""
    assert found is not None
    assert expected is not None
    return float((found.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-9))


def normalisation(part: Part, device: torch.device) -> None:
    """One kernel from bytes to 16 bits, beside the three of fp32, rounded."""
    pictures = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8, device=device)
    pictures = pictures.to(memory_format=torch.channels_last)
    whole = normalizer(MEAN, STD, device, torch.float32)(pictures)
    for kind in (torch.bfloat16, torch.float16):
        found = normalizer(MEAN, STD, device, torch.float32, kind)(pictures)
        apart = float((found.float() - whole).abs().max())
        right = apart <= torch.finfo(kind).eps * 4 and found.is_contiguous(memory_format=torch.channels_last)
        part.check(f"normalised to {str(kind).removeprefix('torch.')}", right, f"at most {apart:.1e} from fp32's")


def collectives(part: Part, device: torch.device) -> None:
    """Check an average by NCCL, as DDP's buckets take it, and the speed of an all-reduce as the probe measures it."""
    from trainyard.parallel.process_group import Group

    class Alone(Group):
        """A group without a model."""

        def wrap(self, model: nn.Module) -> nn.Module:
            return model

    from trainyard import config

    place = joined()
    comm: Any = config.build({"data": {"dir": "synthetic"}, "epochs": 1, "batch": {"global": 8}}).comm
    strategy = Alone(place, device, comm)
    size = 64 << 20 if part.gpu else 1 << 20
    seconds = probe.all_reduce_seconds(strategy, device, size, 3)
    part.add("all-reduce", "ok", f"{size >> 20} MiB in {seconds * 1e3:.2f} ms, in a group of one", seconds=seconds)
    for kind in BOUNDS:
        name = f"average by NCCL, {str(kind).removeprefix('torch.')}"
        if part.needs_gpu(name):
            continue
        value = torch.full((1000,), 3.0, dtype=kind, device=device)
        dist.all_reduce(value, dist.ReduceOp.AVG)
        part.check(name, bool((value == 3.0).all()), "3, of one process that has 3")
    strategy.close()


if __name__ == "__main__":
    main(work)
