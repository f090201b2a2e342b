"""What the trainers are compared with on a GPU: the training steps of torchvision's reference script and of timm.

Each function builds a model and returns a step that takes no arguments; data lie ready on the device. Both are written
after what the scripts do in a step, not copied:

torchvision  references/classification/train.py with --amp: NCHW, fp16 autocast with a loss scaler, SGD with momentum,
             accuracy and loss fetched every step
timm         benchmark.py --bench train --amp --amp-dtype bfloat16 --channels-last: SGD from timm's own factory
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Step = Callable[[], None]


def batch_on(device: torch.device, samples: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    """Normal random pictures (samples, 3, size, size) and labels."""
    return (
        torch.randn(samples, 3, size, size, device=device),
        torch.randint(0, classes, (samples,), device=device),
    )


def torchvision_step(name: str, device: torch.device, samples: int, size: int, compiled: bool) -> Step:
    """A step of torchvision's reference script."""
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


def timm_step(name: str, device: torch.device, samples: int, size: int, compiled: bool) -> Step:
    """A step of timm's benchmark; raises ImportError where timm is not installed."""
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
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            outputs = model(pictures)
        criterion(outputs.float(), labels).backward()
        optimizer.step()

    return step
