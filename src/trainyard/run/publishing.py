"""Publishes the trained model: weights that plain torchvision loads, and all that is needed to use them.

published/ holds model.pth and model.safetensors, config.json (models/described.py), README.md (card.py), on request
model.pt2 and model.onnx (export_formats.py), and SHA256SUMS, which is removed first and written last: where it is, the
others are complete.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from trainyard.core.files import rename
from trainyard.core.storage import storage
from trainyard.models.described import Description, as_json, rebuild
from trainyard.models.weights import FILE as CONFIG
from trainyard.models.weights import SUMS
from trainyard.run import export_formats
from trainyard.run.card import card, provenance, with_export
from trainyard.run.export_formats import Refusal

CARD = "README.md"
EARLIER = ("README.txt",)  # of versions up to 0.1.0


@dataclass
class Published:
    """A folder that is being published; files take their names from `staging` (the lease's, which goes with it)."""

    folder: Path
    staging: Path | None
    sums: dict[str, str] = field(default_factory=dict)  # SHA-256 by file

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole; raises OSError."""
        storage.write_file(self.folder / name, content, via=self.staging)
        self.sums[name] = hashlib.sha256(content).hexdigest()

    def remove(self, name: str) -> None:
        """Remove a file of an earlier publication, by way of `staging`; raises OSError."""
        storage.perform(self.folder / name, self._remove, self.folder / name)

    def _remove(self, path: Path) -> None:
        if path.exists():
            aside = (self.staging or self.folder) / f".{path.name}.old"
            rename(path, aside)
            aside.unlink(missing_ok=True)

    def seal(self) -> None:
        """Write the hashes, in the form of `sha256sum`."""
        lines = (f"{digest}  {name}\n" for name, digest in sorted(self.sums.items()))
        storage.write_file(self.folder / SUMS, "".join(lines).encode(), via=self.staging)


def publish(
    folder: Path,
    model: nn.Module,
    weights: Mapping[str, Tensor],
    *,
    found: Description,
    summary: Mapping[str, Any],
    staging: Path | None = None,
) -> None:
    """Write the weights as model.pth and model.safetensors, under the plain model's own names, and what describes them.

    `weights` are whole, `model` tells only the names of its layers; `summary` is that of the run. Raises OSError, and
    UserError where an export fails, with all else published.
    """
    folder.mkdir(exist_ok=True)
    place = Published(folder, staging)
    for name in (SUMS, *export_formats.FILES.values(), *EARLIER):
        place.remove(name)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    place.write("model.pth", buffer.getvalue())
    place.write("model.safetensors", to_safetensors(state, metadata={"format": "pt", "trained": provenance(summary)}))
    place.write(CONFIG, (json.dumps(as_json(found, model), indent=2) + "\n").encode())
    text = card(found, summary)
    place.write(CARD, text.encode())
    place.seal()
    if kinds := summary["config"]["publish"]["export"]:
        add_exports(kinds, rebuild(found, state).float(), found, place, text, export_formats.of_a_run)


def add_exports(  # noqa: PLR0917
    kinds: Sequence[str], model: nn.Module, found: Description, place: Published, text: str, refusal: Refusal
) -> dict[str, float]:
    """Add the model in other formats; return for each file its largest difference from the model's outputs.

    `text` is the card that is there, empty for none. Raises UserError, in the words of `refusal`, for a format that
    fails; what is there already stays.
    """
    differences = {}
    for kind in kinds:
        content, difference = export_formats.export_model(kind, model, found.size, refusal)
        name = export_formats.FILES[kind]
        differences[name] = difference
        place.remove(SUMS)
        place.write(name, content)
        if text:
            text = with_export(text, found, name, difference)
            place.write(CARD, text.encode())
        place.seal()
    return differences
