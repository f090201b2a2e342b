"""Pretrained weights as files: where they lie, and what they say about the images that they were trained on.

Weights that are not given as a path are fetched once, by `trainyard prepare weights`; trainers only read
files. Fetched weights are a folder with the state dict and a config.json in the form of timm's model hubs, written
last, which holds the preprocessing. A published/ folder has the same form. Nothing here imports torch.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from trainyard.config import Config
from trainyard.config.sections.data import DataSettings
from trainyard.config.sections.learning import ModelSettings
from trainyard.core.exits import InputError, UserError
from trainyard.core.files import cache_folder, drop_cached_file, json_checksum, section
from trainyard.core.storage import storage

FILE = "config.json"
OWN = "trainyard"  # the part of config.json that timm has no key for
CHECKSUM = "checksum"  # in that part, of fetched weights
TIMM = "timm"
ENUM = re.compile(r"(?:(\w+_Weights)\.)?([A-Z][A-Z0-9_]*)")
STATES = ("model.safetensors", "model.pth")
ADDRESSES = ("http", "https", "s3", "gs")
SUMS = "SHA256SUMS"  # of a published/ folder
SIZES = ("image_size", "val_image_size", "val_resize")
DIGITS = 12  # of a hash in a message


def kind_of(pretrained: str) -> str:
    """Return what model.pretrained is: `none`, `torchvision`, `timm`, `address` or `path`."""
    if not pretrained:
        return "none"
    if pretrained == TIMM:
        return "timm"
    if urlsplit(pretrained).scheme in ADDRESSES:
        return "address"
    return "torchvision" if ENUM.fullmatch(pretrained) else "path"


def is_fetched(pretrained: str) -> bool:
    """Whether the weights that model.pretrained names are fetched before the run."""
    return kind_of(pretrained) in ("torchvision", "timm", "address")


def folder_of(settings: ModelSettings, data: DataSettings) -> Path:
    """Return the folder of the weights that are fetched for these settings; raises UserError where both clash."""
    name = settings.pretrained
    library, _, model = settings.name.rpartition(":")
    kind = kind_of(name)
    if kind == "timm" and library != TIMM:
        raise UserError(
            f"model.pretrained = 'timm' with model.name = {settings.name!r}: only timm's models have such weights; set "
            f"model.name to timm:{model}, or name other weights"
        )
    if kind == "torchvision" and library not in ("", "torchvision"):
        raise UserError(
            f"model.pretrained = {name!r} with model.name = {settings.name!r}: only torchvision's models have weights "
            "of such names; use torchvision:NAME, timm, a path or an address"
        )
    if kind == "address":
        path = urlsplit(name)._replace(query="", fragment="").geturl()
        return _root(settings, data) / f"{PurePosixPath(path).stem}-{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    member = ENUM.fullmatch(name)
    return _root(settings, data) / (f"timm-{model}" if kind == "timm" else f"{model}-{member[2] if member else name}")


def _root(settings: ModelSettings, data: DataSettings) -> Path:
    if settings.weights_dir:
        return Path(settings.weights_dir)
    if data.dataset or data.dir in ("", "sample", "synthetic"):
        return cache_folder() / "weights"
    return Path(data.dir).parent / "weights"


def file_of(settings: ModelSettings, data: DataSettings) -> Path:
    """Return the file of the weights; raises InputError where they were not fetched yet, and UserError."""
    if not is_fetched(settings.pretrained):
        path = Path(settings.pretrained)
        return next((path / name for name in STATES if (path / name).exists()), path)
    folder = folder_of(settings, data)
    tree = storage.read_json(folder / FILE)
    own = section(tree, OWN)
    file = own.get("file")
    if isinstance(file, str) and file and own.get(CHECKSUM) in (None, checksum_of(tree)):  # earlier versions wrote none
        return folder / file
    raise InputError(
        f"model.pretrained = {settings.pretrained!r}: these weights are not in {folder}; fetch them once with "
        "`trainyard prepare weights` and the options of this run, on a cluster with the dataset's Job "
        "(dataset.enabled, with dataset.source.kind: none for weights alone); without a network set model.pretrained "
        "to the path of a file"
    )


def checksum_of(tree: Mapping[str, Any]) -> str:
    """Return the checksum of what the config.json of fetched weights says: mean and deviation among others."""
    own = {key: value for key, value in section(tree, OWN).items() if key != CHECKSUM}
    return json_checksum({**tree, OWN: own})


def check_hash(settings: ModelSettings, path: Path) -> None:
    """Compare a file of weights with the SHA-256 that is known of it; raises InputError where it has another one.

    Known is what model.pretrained_sha256, the config.json of fetched weights or the SHA256SUMS of a published folder
    says. A file that seems to differ is read again from its storage: a bit may have changed in the node's memory alone.
    Raises OSError and StorageError.
    """
    own = section(storage.read_json(path.parent / FILE), OWN)
    fetched = str(own.get("sha256") or "") if own.get("file") == path.name else ""
    wanted = settings.pretrained_sha256 or fetched or read_sums(path.parent).get(path.name, "")
    if not wanted or storage.hash_file(path) == wanted:
        return
    drop_cached_file(path)
    found = storage.hash_file(path)
    if found == wanted:
        return
    known = "model.pretrained_sha256" if settings.pretrained_sha256 else FILE if fetched else SUMS
    remedy = (
        "fetch it again with `trainyard prepare weights` and the options of this run, which replaces it; on a cluster "
        "delete the dataset's Job, and upgrade the release with the same values"
        if is_fetched(settings.pretrained)
        else "copy it again, whole, or correct the key"
        if settings.pretrained_sha256
        else "copy it again, whole"
    )
    raise InputError(
        f"model.pretrained = {settings.pretrained!r}: {path} has SHA-256 {found[:DIGITS]}..., and {known} says "
        f"{wanted[:DIGITS]}...: the file is damaged, or another one; {remedy}"
    )


def read_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a published folder; empty where it has no SHA256SUMS. Raises OSError."""
    data = storage.read_bytes(folder / SUMS) if storage.exists(folder / SUMS) else b""
    text = data.decode(errors="replace")  # a byte that has changed is in no name and no hash
    return {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}


def apply_preprocessing(config: Config, recorded: Callable[[], Mapping[str, Any]] = dict) -> Config:
    """Return the settings, in which mean, deviation, interpolation and sizes are the weights' where nobody set them.

    Where the weights are not there, they are those that the run was trained with: `recorded` gives the settings of the
    checkpoint that it resumes from, or nothing. Raises InputError where it has none and the weights were not fetched
    yet, and UserError.
    """
    kept = recorded() if _is_missing(config.model, config.data) else {}
    data, augment = _of_settings(kept) if kept else read_preprocessing(config.model, config.data)
    if not data:
        return config
    if config.data.model_fields_set & set(SIZES):
        data = {key: value for key, value in data.items() if key in ("mean", "std")}
    return config.model_copy(
        update={
            "data": _with(config.data, data),
            "augment": _with(config.augment, augment),
        }
    )


def _is_missing(settings: ModelSettings, data: DataSettings) -> bool:
    """Whether the file of the weights that the settings name is not there; raises UserError and StorageError."""
    if kind_of(settings.pretrained) == "none":
        return False
    try:
        path = file_of(settings, data)
    except InputError:
        return True
    return path.is_dir() or not storage.exists(path)  # a folder: one without a state dict


def _of_settings(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of `data` and `augment` that weights ask for, as whole settings have them."""
    data, augment = tree.get("data", {}), tree.get("augment", {})
    return (
        {key: data[key] for key in (*SIZES, "mean", "std") if key in data},
        {key: augment[key] for key in ("interpolation",) if key in augment},
    )


def read_preprocessing(settings: ModelSettings, data: DataSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of `data` and `augment` that the weights ask for; none where nothing is known of them.

    Raises InputError where the weights were not fetched yet, and UserError where they have another hash than was asked.
    """
    if kind_of(settings.pretrained) == "none":
        return {}, {}
    path = file_of(settings, data).parent / FILE
    tree = storage.read_json(path)
    if is_fetched(settings.pretrained):
        _compare(settings, folder_of(settings, data), tree)
    kept = tree.get("pretrained_cfg")
    if not isinstance(kept, dict):
        return {}, {}
    try:
        return _preprocessing(kept, section(tree, OWN))
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise UserError(
            f"{path} does not say how images are prepared ({type(error).__name__}: {error}); give the path of the "
            "weights' file without it, or fetch the weights again"
        ) from error


def _compare(settings: ModelSettings, folder: Path, tree: dict[str, Any]) -> None:
    wanted, found = settings.pretrained_sha256, section(tree, OWN).get("sha256")
    if wanted and wanted != found:
        raise UserError(
            f"model.pretrained_sha256 = {wanted}: the weights in {folder} have {found}; correct the key, or remove "
            "that folder and fetch them again"
        )


def _preprocessing(kept: dict[str, Any], own: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of `data` and `augment` that follow from a pretrained_cfg; sizes are in pixels."""
    built_for, size, resize = image_sizes(kept, own)
    data = {
        "image_size": built_for,
        "val_image_size": size,
        "val_resize": max(resize, size),
        "mean": [float(value) for value in kept["mean"]],
        "std": [float(value) for value in kept["std"]],
    }
    known = kept["interpolation"] in ("bilinear", "bicubic")
    return data, {"interpolation": kept["interpolation"]} if known else {}


def image_sizes(kept: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[int, int, int]:
    """In pixels: what the model was built for, a validation image, and the shorter side that this is cut from.

    `kept` is a pretrained_cfg, `own` our part. timm resizes to floor(size / crop_pct) (timm, data/transforms_factory).
    """
    size = int(kept["input_size"][1])
    resize = own.get("resize") or math.floor(size / kept["crop_pct"])
    return int(own.get("built_for") or size), size, int(resize)


def _with(section: Any, values: dict[str, Any]) -> Any:
    """Return a section with these values, but for keys that were set."""
    free = {key: value for key, value in values.items() if key not in section.model_fields_set}
    return type(section).model_validate({**section.model_dump(by_alias=True, exclude_unset=True), **free})
