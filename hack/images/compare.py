"""Compare two builds of an image: which layers have other digests, and by which files and causes.

    python3 -m hack.images.compare LAYOUT NAME OTHER_LAYOUT NAME

It ends with 0 where all layers are equal, and with 1 where some are not.

A layout is an OCI layout such as `hack/images/build` keeps; a name is the image's there, with or without registry and
tag. Layers are compared by their uncompressed digests, so a compressor makes no difference.
"""

import gzip
import hashlib
import re
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hack.publish import layout

EXAMPLES = 3  # files of a cause that are named
# Files whose bytes depend on when or where an installer ran, by the cause; the first that matches counts
CAUSES = (
    ("pip notes where a wheel came from", re.compile(r"\.dist-info/(direct_url\.json|RECORD)$")),
    ("logs and caches of installers", re.compile(r"^var/(log|cache|lib/(apt|dpkg|systemd|pam))/|^etc/ld\.so\.cache$")),
    ("accounts note the day of their making", re.compile(r"^etc/(shadow|gshadow|passwd|group)-?$")),
)
OTHER, TIMES, OWNERS, ALONE = "content", "only the time differs", "mode or owner", "only in one of them"
BYTECODE = "bytecode that differs in the time of its source alone"
HEADER = 16  # bytes of a .pyc in which the time and size of its source stand


class ImageFile(NamedTuple):
    """What a layer holds at a path."""

    kind: bytes
    mode: int
    owner: tuple[int, int]
    content: str  # of a file its digest, of a link its target
    header: bytes  # of bytecode, which is not part of `content`
    time: float


def find_image(folder: Path, name: str) -> str:
    """Return the full name of an image in a layout; raises SystemExit where it is not one."""
    known = [one for one in layout.names(folder) if name in (one, one.rpartition("/")[2].partition(":")[0])]
    if len(known) != 1:
        raise SystemExit(f"{folder} has {len(known)} images {name}: it has {', '.join(layout.names(folder))}")
    return known[0]


def list_layers(folder: Path, name: str) -> list[Path]:
    """Return the blobs of an image's layers, the lowest first."""
    return [layout.blob(folder, one["digest"]) for one in layout.manifest(folder, find_image(folder, name))["layers"]]


def read_tar(blob: Path) -> bytes:
    """Return a layer's tar, uncompressed."""
    content = blob.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def tar_digest(blob: Path) -> str:
    """Return the digest of a layer's tar: its own name, unless it is compressed."""
    with blob.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return layout.digest(read_tar(blob)) if compressed else f"sha256:{blob.name}"


def list_files(blob: Path) -> dict[str, ImageFile]:
    """Return what a layer holds, by path."""
    found = {}
    with tarfile.open(blob) as tar:
        for one in tar:
            file = tar.extractfile(one) if one.isreg() else None
            path = one.name.removeprefix("./").rstrip("/")
            header = file.read(HEADER) if file and path.endswith(".pyc") else b""
            content = hashlib.sha256(file.read()).hexdigest() if file else one.linkname
            found[path] = ImageFile(one.type, one.mode, (one.uid, one.gid), content, header, one.mtime)
    return found


def explain_file(path: str, one: ImageFile | None, other: ImageFile | None) -> str:
    """Return why a path of two layers differs; empty where it does not."""
    if one == other:
        return ""
    if one is None or other is None:
        return ALONE
    if (one.kind, one.content) != (other.kind, other.content):
        return next((why for why, names in CAUSES if names.search(path)), OTHER)
    if (one.mode, one.owner) != (other.mode, other.owner):
        return OWNERS
    return TIMES if one.header == other.header else BYTECODE


def explain_layers(one: Mapping[str, ImageFile], other: Mapping[str, ImageFile]) -> dict[str, list[str]]:
    """Return the paths in which two layers differ, by cause."""
    found = defaultdict(list)
    for path in sorted({*one, *other}):
        if why := explain_file(path, one.get(path), other.get(path)):
            found[why].append(path)
    return dict(found)


def find_differences(ours: list[Path], theirs: list[Path]) -> Iterator[tuple[int, dict[str, list[str]]]]:
    """Yield each pair of layers whose digests differ: its number from below, and paths by cause."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if tar_digest(one) != tar_digest(other):
            yield number, explain_layers(list_files(one), list_files(other))


def report(ours: list[Path], theirs: list[Path], found: list[tuple[int, dict[str, list[str]]]]) -> Iterator[str]:
    """Yield the lines that say what is equal and what is not; `found`: find_differences of both."""
    if len(ours) != len(theirs):
        yield f"{len(ours)} layers and {len(theirs)}: those that both have are compared"
    yield f"{min(len(ours), len(theirs)) - len(found)} of {max(len(ours), len(theirs))} layers are equal"
    for number, reasons in found:
        yield f"layer {number}:"
        for why, paths in reasons.items():
            more = f" and {len(paths) - EXAMPLES} more" if len(paths) > EXAMPLES else ""
            yield f"  {why}: {', '.join(paths[:EXAMPLES])}{more}"
        if not reasons:
            yield "  the order of its files"


def main(arguments: list[str]) -> int:
    """Compare what the command line names; returns the exit code."""
    if len(arguments) != 4:
        print((__doc__ or "").split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    ours, theirs = (list_layers(Path(folder), name) for folder, name in (arguments[:2], arguments[2:]))
    found = list(find_differences(ours, theirs))
    print("\n".join(report(ours, theirs, found)))
    return int(len(ours) != len(theirs) or bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
