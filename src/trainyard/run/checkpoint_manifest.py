"""Checks a checkpoint's manifest: by a checksum of itself or, in older ones, by the keys that are used being there.

The checksum is that of what the manifest says, whatever its format, so that a changed format is told from another one.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from trainyard.core.files import json_checksum

CHECKSUM = "checksum"
NOT_WHOLE = "manifest.json is missing or not whole"
FILE_NAME = re.compile(r"[\w-]+\.safetensors")
SHA256 = re.compile(r"[0-9a-f]{64}")
TREES, AVERAGE = {"model.safetensors", "optimizer.safetensors"}, {"ema.safetensors"}
SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


def add_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with its checksum, which takes the place of another one."""
    said: dict[str, Any] = json.loads(json.dumps({key: value for key, value in content.items() if key != CHECKSUM}))
    return {**said, CHECKSUM: json_checksum(said)}


def find_fault(manifest: Mapping[str, Any]) -> str:
    """Return what is wrong with a manifest of any format, as far as its checksum tells; empty if nothing is."""
    if CHECKSUM in manifest and add_checksum(manifest)[CHECKSUM] != manifest[CHECKSUM]:
        return "manifest.json has changed: its checksum is wrong"
    return "" if is_count(manifest.get("format")) and is_count(manifest.get("step")) else NOT_WHOLE


def find_missing(manifest: Mapping[str, Any], found: set[str]) -> str:
    """Return what a manifest of a readable format lacks, or says of another type; empty if nothing.

    `found` are the files beside it. One that has its checksum says what was written.
    """
    if CHECKSUM in manifest:
        return ""
    files, scaler = manifest.get("files"), manifest.get("scaler")
    if not isinstance(files, dict) or not all(_is_file(name, entry) for name, entry in files.items()):
        return NOT_WHOLE
    if left_out := sorted((TREES | found & AVERAGE) - files.keys()):
        return f"manifest.json does not list {', '.join(left_out)}"
    sound = (
        is_count(manifest.get("validated"))
        and isinstance(scaler, dict)
        and (not scaler or all(_is_number(scaler.get(key)) for key in SCALER))
        and all(isinstance(manifest.get(key, {}), dict) for key in ("identity", "config", "seconds"))
        and all(_is_number(seconds) for seconds in manifest.get("seconds", {}).values())
    )
    return "" if sound else NOT_WHOLE


def is_count(value: Any) -> bool:
    """Whether a value is a whole number from 0 on."""
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_file(name: str, entry: Any) -> bool:
    """Whether an entry names a file beside the manifest, its size and its hash."""
    return (
        FILE_NAME.fullmatch(name) is not None
        and isinstance(entry, dict)
        and is_count(entry.get("bytes"))
        and SHA256.fullmatch(str(entry.get("sha256"))) is not None
    )
