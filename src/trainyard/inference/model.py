"""Opens a trained model: a run directory, a checkpoint's folder, or published/."""

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from trainyard import config
from trainyard.core.exits import UserError
from trainyard.core.storage import storage
from trainyard.models import described, states
from trainyard.models.described import Description
from trainyard.models.weights import FILE as CONFIG
from trainyard.models.weights import SUMS, read_sums
from trainyard.run import checkpoint

WEIGHTS = "model.safetensors"
GIVE = "give a run directory, a checkpoint's folder (checkpoints/step-NNNNNNNN), or a published/"


@dataclass(frozen=True)
class Trained:
    """A model's weights, and what is known of it; `origin` says where it is from."""

    found: Description
    weights: Mapping[str, Tensor]
    origin: str


def open_trained(path: Path) -> Trained:
    """Read a model; of a run directory the published one, or else its newest checkpoint. Raises UserError."""
    if path.is_file():
        raise UserError(f"--model {path} is a file: its classes and image size are not known; {GIVE}")
    there = {entry.name for entry in storage.list_folder(path)}
    if not there:
        raise UserError(f"--model {path}: no such folder, or an empty one; {GIVE}")
    if folder := published_folder(path):
        return _published(folder)
    if "manifest.json" in there and checkpoint.NAME.fullmatch(path.resolve().name):
        try:
            return _checkpoint(checkpoint.read_checked(path))
        except checkpoint.DamagedCheckpointError as damage:
            raise UserError(f"--model {path}: not a sound checkpoint ({damage}); use another one") from None
    for step in reversed(checkpoint.steps(path / "checkpoints")):
        try:
            return _checkpoint(checkpoint.read_checked(step))
        except checkpoint.DamagedCheckpointError as damage:
            print(f"{step} is damaged ({damage}); looking at the one before")
    raise UserError(f"--model {path}: neither {CONFIG} nor checkpoints are in it; {GIVE}")


def published_folder(path: Path) -> Path | None:
    """Return the folder of a published model: the path itself, or that of a run directory; None where there is none."""
    return next((one for one in (path, path / "published") if (one / CONFIG).is_file()), None)


def _published(folder: Path) -> Trained:
    path = folder / WEIGHTS
    try:
        content, wanted = storage.read_bytes(path), read_sums(folder).get(WEIGHTS)
        if wanted and hashlib.sha256(content).hexdigest() != wanted:
            raise UserError(f"{path} does not have the SHA-256 that {SUMS} names: it is damaged, or not the same model")
        weights = states.parse_safetensors(content)
    except states.refused_state() as error:
        raise UserError(f"{path} {states.refusal(error)}; copy the published folder again, whole") from error
    return Trained(described.read(folder), weights, str(folder))


def _checkpoint(found: checkpoint.Found) -> Trained:
    settings = config.build(found.meta["config"])
    count = int(found.meta["identity"]["model.num_classes"])
    keys, names = _classes(found, count)
    weights: dict[str, Any] = dict(found.tree("model"))
    if found.holds("ema"):  # what is validated and published
        weights |= found.tree("ema")
    return Trained(described.describe(settings, keys, names), weights, f"{found.path} (step {found.step})")


def _classes(found: checkpoint.Found, count: int) -> tuple[list[str], list[str]]:
    """Keys and names of the classes; versions up to 0.1.0 kept names alone, and those beside the checkpoints."""
    if "classes" in found.meta:
        keys, names = found.meta["classes"]
        return keys, names
    try:
        with np.load(found.path.parents[1] / "validation" / "confusion.npz", allow_pickle=False) as archive:
            names = [str(name) for name in archive["classes"]]
            return names, names
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return [], [f"class {index}" for index in range(count)]
