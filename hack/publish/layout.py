"""An OCI layout on disk: images and other artifacts by name, each with the digest that a registry will give it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "org.opencontainers.image.ref.name"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"

Json = dict[str, Any]


def digest(content: bytes) -> str:
    """Return the digest of some bytes, as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def names(layout: Path) -> dict[str, str]:
    """Return the digests of a layout's manifests by their names."""
    index = json.loads((layout / "index.json").read_text())
    return {one.get("annotations", {}).get(NAME, ""): str(one["digest"]) for one in index["manifests"]}


def blob(layout: Path, which: str) -> Path:
    """Return where a blob lies, by its digest."""
    return layout / "blobs" / "sha256" / which.removeprefix("sha256:")


def manifest(layout: Path, name: str) -> Json:
    """Return the manifest of a name."""
    found: Json = json.loads(blob(layout, names(layout)[name]).read_bytes())
    return found


def add(layout: Path, name: str, kind: str, files: Mapping[Path, str], annotations: Mapping[str, str]) -> str:
    """Add files as an artifact of this kind, each with its media type; return the artifact's digest."""
    whole = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": _put(layout, b"{}", EMPTY),
        "layers": [
            _put(layout, path.read_bytes(), media_type) | {"annotations": {"org.opencontainers.image.title": path.name}}
            for path, media_type in files.items()
        ],
        "annotations": dict(annotations),
    }
    put = _put(layout, json.dumps(whole, indent=1, sort_keys=True).encode(), MANIFEST)
    index = layout / "index.json"
    listed = json.loads(index.read_text())["manifests"] if index.exists() else []
    entries = [*listed, put | {"annotations": {NAME: name}}]
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    (layout / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return str(put["digest"])


def _put(layout: Path, content: bytes, media_type: str) -> Json:
    """Store a blob and return its descriptor."""
    which = digest(content)
    path = blob(layout, which)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"mediaType": media_type, "digest": which, "size": len(content)}
