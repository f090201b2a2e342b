"""Write an OCI archive of one uncompressed layer, without any image tool.

python3 oci.py NAME OUT.tar FILE:PATH... -- COMMAND...     an image that holds only these files
python3 oci.py NAME OUT.tar ROOTFS.tar -- COMMAND...       an image of a root filesystem's tar
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

MEDIA = "application/vnd.oci.image."
PATHS = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def layer_of(files: list[str]) -> bytes:
    """Return the tar of an image's layer: the files under their paths, and a /tmp."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(tmp)
        for source, _, target in (item.partition(":") for item in files):
            entry = tarfile.TarInfo(target.lstrip("/"))
            entry.size, entry.mode = Path(source).stat().st_size, 0o755
            with Path(source).open("rb") as data:
                tar.addfile(entry, data)
    return buffer.getvalue()


def descriptor(blob: bytes, kind: str) -> dict:
    """Return what refers to a blob in OCI's documents."""
    return {"mediaType": MEDIA + kind, "digest": "sha256:" + hashlib.sha256(blob).hexdigest(), "size": len(blob)}


def archive(name: str, layer: bytes, command: list[str]) -> dict[str, bytes]:
    """Return the files of the OCI archive: layout, index and blobs."""
    layer_ref = descriptor(layer, "layer.v1.tar")
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": command, "Env": [PATHS]},
            "rootfs": {"type": "layers", "diff_ids": [layer_ref["digest"]]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MEDIA + "manifest.v1+json",
            "config": descriptor(config, "config.v1+json"),
            "layers": [layer_ref],
        }
    ).encode()
    entry = descriptor(manifest, "manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    found = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
    }
    for blob in (layer, config, manifest):
        found["blobs/sha256/" + hashlib.sha256(blob).hexdigest()] = blob
    return found


def main(args: list[str]) -> None:
    """Write the archive that the command line asks for."""
    cut = args.index("--")
    name, out, *files = args[:cut]
    rootfs = len(files) == 1 and ":" not in files[0]
    layer = Path(files[0]).read_bytes() if rootfs else layer_of(files)
    with tarfile.open(out, "w") as tar:
        for path, blob in archive(name, layer, args[cut + 1 :]).items():
            entry = tarfile.TarInfo(path)
            entry.size = len(blob)
            tar.addfile(entry, io.BytesIO(blob))


if __name__ == "__main__":
    main(sys.argv[1:])
