"""Fetches pretrained weights once, for all processes of all runs: found by name, checked by hash, kept as a folder.

torchvision's file names end in the first digits of their SHA-256 (torch.hub's convention); timm's weights lie on the
Hugging Face hub, whose server names the SHA-256 of large files (`X-Linked-ETag`); any other address needs the key
model.pretrained_sha256.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import requests

from trainyard.config.checking import validate
from trainyard.config.sections.data import DataSettings
from trainyard.config.sections.learning import ModelSettings
from trainyard.core.exits import InputError, UserError
from trainyard.core.files import atomic
from trainyard.core.storage import storage, unreadable
from trainyard.models.weights import (
    CHECKSUM,
    ENUM,
    FILE,
    OWN,
    check_hash,
    checksum_of,
    file_of,
    folder_of,
    is_fetched,
    kind_of,
    read_preprocessing,
)
from trainyard.prepare.lock import exclusive
from trainyard.prepare.progress import Pulse, say
from trainyard.prepare.settings import SourceSettings
from trainyard.prepare.sources import open_source
from trainyard.prepare.sources.base import Source, Traffic
from trainyard.prepare.sources.http import without_query
from trainyard.prepare.sources.secrets import Signed

MIRRORED = ("https://download.pytorch.org", "https://huggingface.co")
HASH = re.compile(r"-([0-9a-f]{8,64})\.[a-z]+$")  # torch.hub's HASH_REGEX
CHUNK = 8 << 20
KINDS = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".safetensors")


@dataclass(frozen=True)
class Origin:
    """Where weights come from: the address, the digits that their SHA-256 begins with, and their config.json."""

    url: str
    digits: str
    described: dict[str, Any]  # `architecture` and `pretrained_cfg`, as timm's hubs have them


def fetch(model: ModelSettings, data: DataSettings, wait_seconds: float = 3600.0) -> Path | None:
    """Fetch the weights that the settings of a run name; None where there is nothing to fetch.

    One process fetches, others wait for it; while storage fails, it is done again. Raises UserError, and InputError and
    ExitError for what may pass.
    """
    if not is_fetched(model.pretrained):
        say("model.pretrained names no weights that must be fetched")
        return None
    folder = folder_of(model, data)
    try:
        storage.make_folder(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}); set model.weights_dir to one that can") from None
    with exclusive(folder / "lock", wait_seconds, say):
        if found := _kept(model, data, folder):
            say(f"{found} is here already")
            return found
        return _fetch(model, folder)


def _kept(model: ModelSettings, data: DataSettings, folder: Path) -> Path | None:
    """Return the file of weights that were fetched before; None where they are not here, or not as they were fetched.

    Raises UserError where they have another hash than was asked for.
    """
    try:
        found = file_of(model, data)
    except InputError:
        return None
    read_preprocessing(model, data)  # compares what is recorded with what is asked for
    try:
        check_hash(model, found)
    except (InputError, FileNotFoundError) as error:
        say(f"{error}. They are fetched again")
        (folder / FILE).unlink(missing_ok=True)  # no trainer takes what is half replaced
        return None
    except OSError as error:
        raise unreadable(found, error) from error
    return found


def _fetch(model: ModelSettings, folder: Path) -> Path:
    origin = find(model)
    shown = without_query(origin.url)
    suffix = PurePosixPath(urlsplit(origin.url).path).suffix
    if suffix not in KINDS:
        raise UserError(f"model.pretrained: {shown} is no state dict; it must end in {', '.join(KINDS)}")
    file = folder / f"model{'.safetensors' if suffix == '.safetensors' else '.pth'}"
    scheme = "http" if urlsplit(origin.url).scheme in ("http", "https") else "objectstore"
    where = validate(SourceSettings, {"kind": scheme, "url": origin.url}, "model.pretrained: ")
    signed = Signed("weights-url", "model.pretrained", strict=kind_of(model.pretrained) == "address")
    source = open_source(where, Traffic(), signed=signed)
    try:
        digest = storage.perform(file, _write, source, file, shown, origin.digits)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); enlarge the claim or free space") from None
    finally:
        source.close()
    _check_readable(file, shown)
    own = {"file": file.name, "origin": shown, "sha256": digest, **origin.described.pop(OWN, {})}
    own[CHECKSUM] = checksum_of({**origin.described, OWN: own})
    storage.write_json(folder / FILE, {**origin.described, OWN: own})
    say(f"{shown}: {source.size / 1e6:,.1f} MB, SHA-256 {digest}, kept as {file}")
    if len(origin.digits) < len(digest) and urlsplit(origin.url).scheme == "http":
        say(
            f"only {len(origin.digits)} digits of its SHA-256 were known, and http protects nothing on its way: where "
            f"you trust this file, set model.pretrained_sha256 to {digest}"
        )
    return file


def _write(source: Source, file: Path, shown: str, digits: str) -> str:
    """Write what a source holds; returns its SHA-256. Raises InputError where it has other digits, and OSError."""
    with atomic(file) as out:
        digest = _copy(source, out, shown)
        if not digest.startswith(digits):
            raise InputError(
                f"{shown} has SHA-256 {digest}, and {digits} was expected: it is not the file that was meant, or was "
                "damaged on its way; check the address and model.pretrained_sha256"
            )
    return digest


def _copy(source: Source, out: BinaryIO, shown: str) -> str:
    """Copy a source into a file with lines on the progress; returns its SHA-256."""
    digest, pulse = hashlib.sha256(), Pulse()
    for offset in range(0, source.size, CHUNK):
        data = source.read_range(offset, min(CHUNK, source.size - offset))
        digest.update(data)
        out.write(data)
        done = offset + len(data)
        pulse.beat(lambda seconds, done=done: (  # type: ignore[misc]
            f"{shown}: {done / 1e6:,.0f} of {source.size / 1e6:,.0f} MB, {done / 1e6 / seconds:,.1f} MB/s"
        ))  # fmt: skip
    return digest.hexdigest()


def _check_readable(file: Path, shown: str) -> None:
    """Raise UserError, and remove the file, where it is no state dict."""
    from trainyard.models import states

    try:
        states.read(file)
    except states.refused_state() as error:
        file.unlink(missing_ok=True)
        raise UserError(f"{shown} {states.refusal(error)}") from error


def find(model: ModelSettings) -> Origin:
    """Where the weights of the settings lie; raises UserError."""
    name, kind = model.pretrained, kind_of(model.pretrained)
    origin = {"torchvision": _torchvision, "timm": _timm, "address": _address}[kind](model)
    url, mirror = origin.url, model.weights_mirror.rstrip("/")
    for address in MIRRORED if mirror else ():
        url = url.replace(address, mirror, 1)
    digits = model.pretrained_sha256 or origin.digits
    if not digits and kind == "timm":
        digits = _linked_sha256(url)
    if not digits:
        raise UserError(
            f"model.pretrained = {without_query(name)!r}: nothing says what its SHA-256 is; set "
            "model.pretrained_sha256 to what `sha256sum FILE` prints where you trust the file"
        )
    return Origin(url, digits, origin.described)


def _torchvision(settings: ModelSettings) -> Origin:
    import torchvision

    models: Any = torchvision.models
    model = settings.name.rpartition(":")[2]
    match = ENUM.fullmatch(settings.pretrained)
    assert match
    try:
        known = models.get_model_weights(model)
    except ValueError:
        raise UserError(f"model.name = {settings.name!r}: torchvision has no such classification model") from None
    members = known.__members__
    if match[2] not in members or match[1] not in (None, known.__name__):
        raise UserError(
            f"model.pretrained = {settings.pretrained!r}: torchvision has no such weights for {model}; there are "
            f"{', '.join(f'{known.__name__}.{member}' for member in members)}"
        )
    weights = members[match[2]]
    how = weights.transforms()
    size, resize = how.crop_size[0], how.resize_size[0]
    described = {
        "architecture": model,
        "num_classes": len(weights.meta["categories"]),
        "pretrained_cfg": {
            "num_classes": len(weights.meta["categories"]), "input_size": [3, size, size],
            "interpolation": how.interpolation.value, "crop_pct": size / resize, "crop_mode": "center",
            "mean": list(how.mean), "std": list(how.std),
        },
        OWN: {"model": settings.name, "resize": resize, "weights": str(weights)},
    }  # fmt: skip
    return Origin(weights.url, _digits_of(weights.url), described)


def _timm(settings: ModelSettings) -> Origin:
    from trainyard.models.factory import import_timm

    timm, model = import_timm(settings.name), settings.name.rpartition(":")[2]
    found = timm.get_pretrained_cfg(model) if timm.is_model(model) else None
    if found is None or not (found.hf_hub_id or found.url) or found.custom_load:
        raise UserError(
            f"model.pretrained = 'timm' with model.name = {settings.name!r}: timm {timm.__version__} has no "
            "weights for it that are a state dict; name another model or tag, such as timm:resnet50.a1_in1k, or a path"
        )
    described = {"architecture": model, "num_classes": found.num_classes, "pretrained_cfg": found.to_dict(True)}
    described[OWN] = {"model": settings.name, "weights": f"{found.architecture}.{found.tag}"}
    if not found.hf_hub_id:
        return Origin(found.url, _digits_of(found.url), described)
    hub, _, revision = found.hf_hub_id.partition("@")
    name = found.hf_hub_filename or "model.safetensors"
    return Origin(f"https://huggingface.co/{hub}/resolve/{revision or 'main'}/{name}", "", described)


def _address(settings: ModelSettings) -> Origin:
    url = settings.pretrained
    return Origin(url, _digits_of(url), {"architecture": settings.name})


def _digits_of(url: str) -> str:
    match = HASH.search(urlsplit(url).path)
    return match[1] if match else ""


def _linked_sha256(url: str) -> str:
    """Return the SHA-256 that the hub's server names for a large file; empty where it names none."""
    try:
        answer = requests.head(url, allow_redirects=False, timeout=(10, 60))
    except requests.RequestException:
        return ""  # the fetch itself says what is wrong
    tag = answer.headers.get("X-Linked-ETag", "").strip('"')
    return tag if re.fullmatch(r"[0-9a-f]{64}", tag) else ""
