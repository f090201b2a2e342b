"""Publishes the trained weights in a form that plain torchvision loads."""

import io
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from trainers.files import write_atomically


def publish(weights: Mapping[str, Tensor], folder: Path, provenance: str, staging: Path | None = None) -> None:
    """Write the weights as model.pth and model.safetensors, under the plain model's own names.

    They take their names from the folder `staging` (that of the lease, which goes with it). Raises OSError.
    """
    folder.mkdir(exist_ok=True)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    for name, content in (
        ("model.pth", buffer.getvalue()),
        ("model.safetensors", to_safetensors(state, metadata={"format": "pt", "trained": provenance})),
        ("README.txt", f"{provenance}\n".encode()),
    ):
        write_atomically(folder / name, content, via=staging)
