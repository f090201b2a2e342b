"""unused_blobs.py OCI_DIR: print the blobs of an OCI layout that its index does not lead to."""

import json
import sys
from pathlib import Path

root = Path(sys.argv[1])
blobs = root / "blobs" / "sha256"


def digests(name: str) -> set[str]:
    """Return the manifest of that digest and all that it names."""
    manifest = json.loads((blobs / name).read_text())
    named = [manifest["config"], *manifest["layers"]]
    return {name} | {entry["digest"].removeprefix("sha256:") for entry in named}


index = json.loads((root / "index.json").read_text())
used = set().union(*(digests(entry["digest"].removeprefix("sha256:")) for entry in index["manifests"]))
for blob in sorted(blobs.iterdir()):
    if blob.name not in used:
        print(blob)
