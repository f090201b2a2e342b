"""What the trainers are compared with on a GPU: the steps of torchvision's reference script and of timm, and DALI.

Each function builds a model and returns a step that takes no arguments; data lie ready on the device, but for DALI's.
They are written after what the scripts do in a step, not copied:

torchvision  references/classification/train.py with --amp: NCHW, fp16 autocast with a loss scaler, SGD with momentum,
             accuracy and loss fetched every step
timm         benchmark.py --bench train --amp --amp-dtype bfloat16 --channels-last: SGD from timm's own factory
dali         NVIDIA's pipeline, which decodes and crops on the GPU, before a step in 16 bits with channels_last
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Step = Callable[[], None]


def batch_on(device: torch.device, samples: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return normal random pictures (samples, 3, size, size) and labels."""
    return (
        torch.randn(samples, 3, size, size, device=device),
        torch.randint(0, classes, (samples,), device=device),
    )


def torchvision_step(name: str, device: torch.device, samples: int, size: int, compiled: bool) -> Step:
    """Return a step of torchvision's reference script."""
    import torchvision

    torch.backends.cudnn.benchmark = True
    model: Any = torchvision.models.get_model(name).to(device)
    model = torch.compile(model) if compiled else model
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    pictures, labels = batch_on(device, samples, size, 1000)

    def step() -> None:
        with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
            outputs = model(pictures)
            loss = criterion(outputs, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        right = outputs.detach().topk(5, 1).indices.eq(labels[:, None])
        loss.item(), right[:, 0].sum().item(), right.sum().item()

    return step


def timm_step(  # noqa: PLR0917
    name: str, device: torch.device, samples: int, size: int, compiled: bool, kind: torch.dtype
) -> Step:
    """Return a step of timm's benchmark in a type of 16 bits; raises ImportError where timm is not installed."""
    import timm
    from timm.optim import create_optimizer_v2

    torch.backends.cudnn.benchmark = True
    model: Any = timm.create_model(name).to(device, memory_format=torch.channels_last)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.1, momentum=0.9)
    model = torch.compile(model) if compiled else model
    pictures, labels = batch_on(device, samples, size, 1000)
    pictures = pictures.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, kind, enabled=device.type == "cuda"):
            outputs = model(pictures)
        criterion(outputs.float(), labels).backward()
        optimizer.step()

    return step


def dali_step(name: str, samples: int, size: int, pictures: Path, kind: torch.dtype) -> Step:
    """Get a step on pictures that DALI reads from folders of JPEGs by class; raises ImportError where it is missing."""
    import torchvision
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=samples, num_threads=8, device_id=0)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        encoded, labels = fn.readers.file(file_root=str(pictures), random_shuffle=True, name="reader")
        cut = fn.decoders.image_random_crop(encoded, device="mixed", output_type=types.RGB)
        resized = fn.resize(cut, resize_x=size, resize_y=size)
        mean, std = [0.485 * 255, 0.456 * 255, 0.406 * 255], [0.229 * 255, 0.224 * 255, 0.225 * 255]
        return fn.crop_mirror_normalize(resized, mirror=fn.random.coin_flip(), mean=mean, std=std), labels.gpu()

    batches: Any = DALIGenericIterator(pipeline(), ["pictures", "labels"], auto_reset=True, last_batch_policy="DROP")
    model: Any = torchvision.models.get_model(name).to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    endless = iter(lambda: next(batches), None)

    def step() -> None:
        batch = next(endless)[0]
        with torch.autocast("cuda", kind):
            outputs = model(batch["pictures"].contiguous(memory_format=torch.channels_last))
        torch.nn.functional.cross_entropy(outputs.float(), batch["labels"].squeeze(1).long()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
