"""Small archives of real JPEG pictures in the layouts that are prepared, and ways to look at the result."""

import io
import tarfile
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from tests import patience
from trainyard.prepare.settings import Preparation, parse
from trainyard.prepare.sources.retry import Patience
from trainyard.report import dataset
from trainyard.shards.reader import open_split

HASTE = Patience(tries=4, first_pause=0.01, longest_pause=0.05, timeout=(patience.IDLE, patience.IDLE))
# For faults that requests meet by their number: one of several workers may meet many in a row
PATIENT = replace(HASTE, tries=200)
SYNSETS = ("n03000000", "n01000000", "n02000000")
DATA = "ILSVRC/Data/CLS-LOC"


@cache
def picture(number: int, size: int = 48) -> bytes:
    """A JPEG of noise, the same for the same number."""
    pixels = np.random.Generator(np.random.Philox(key=number)).integers(0, 256, (size, size, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def imagenet(train: int = 300, val: int = 90) -> dict[str, bytes]:
    """Members of an archive in Kaggle's layout; validation picture i is of class i mod 3 in the order of SYNSETS."""
    members = {
        "ILSVRC/Annotations/CLS-LOC/val/val_0.xml": b"<annotation/>",
        f"{DATA}/test/test_0.JPEG": picture(10**6),
        "ILSVRC/ImageSets/CLS-LOC/val.txt": b"val_0 1\n",
    }
    for synset in SYNSETS:
        members |= {
            f"{DATA}/train/{s}/{s}_{i}.JPEG": picture(i) for i in range(train) if (s := SYNSETS[i % 3]) == synset
        }
    members |= {f"{DATA}/val/val_{i}.JPEG": picture(1000 + i) for i in range(val)}
    members["LOC_synset_mapping.txt"] = "".join(f"{s} thing {s[2]}, other name\n" for s in sorted(SYNSETS)).encode()
    rows = "".join(f"val_{i},{SYNSETS[i % 3]} 1 2 3 4 {SYNSETS[0]} 1 2 3 4\n" for i in range(val))
    members["LOC_val_solution.csv"] = f"ImageId,PredictionString\n{rows}".encode()
    return members


def write_zip(path: Path, members: dict[str, bytes], packed: str = "/val/") -> Path:
    """Write a zip; members whose names hold `packed`, and texts, are deflated."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            deflate = packed in name or not name.endswith("JPEG")
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            archive.writestr(info, content, zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED)
    return path


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w", kind: int = tarfile.PAX_FORMAT) -> Path:
    """Write a tar, gzipped with mode `w:gz`."""
    with tarfile.open(path, mode, format=kind) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_folder(root: Path, members: dict[str, bytes]) -> Path:
    """Write the members as files."""
    for name, content in members.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def pictures(root: Path, split: str) -> dict[bytes, str]:
    """Return each picture of a prepared split with the name of its class."""
    shards = open_split(root, split)
    return {shards.read(i): shards.class_names[shards.labels[i]] for i in range(len(shards))}


def config(source: Path | str, out: Path, **settings: object) -> Preparation:
    """Settings for an archive at a path or URL, with shards small enough to have several.

    Pictures keep their bytes, by which tests recognise them; test_rewriting.py is about those that do not.
    """
    http = str(source).startswith("http")
    where = {"kind": "http", "url": str(source)} if http else {"kind": "path", "path": str(source)}
    return parse({"source": where, "out": str(out), "shard_mb": 1, "workers": 4, "seekable": False, **settings})


def contents(root: Path, *, manifest: bool = True) -> dict[str, bytes]:
    """All files of a prepared dataset, without the work folder and the page about it, which is no part of it."""
    besides = {".prepare", dataset.FILE}
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and besides.isdisjoint(path.parts))
    return {str(p.relative_to(root)): p.read_bytes() for p in files if manifest or p.name != "manifest.json"}
