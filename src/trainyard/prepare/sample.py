"""The sample set: real images that need no network to a data host.

Fashion-MNIST (70,000 images of clothing, MIT licence, github.com/zalandoresearch/fashion-mnist) comes as Debian's
package `dataset-fashion-mnist`. A balanced part of it is encoded as JPEG and packed in Kaggle's ImageNet layout, so
that it takes the same path as the real archive: zip, ranges, checks, shards.
"""

import gzip
import hashlib
import io
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainyard.core.exits import UserError
from trainyard.core.files import atomic, cache_folder
from trainyard.prepare.lock import exclusive
from trainyard.prepare.progress import say
from trainyard.prepare.settings import Preparation, SourceSettings
from trainyard.shards import manifest as manifests

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
PER_CLASS = {"train": 600, "val": 200}
UNLABELLED = 5
_FILES = {"train": "train", "val": "t10k"}
_QUALITY = 90
# Changes with the code that makes the archive, so that older caches are not used
_VERSION = 1


def ensure_sample() -> Path:
    """Return the prepared sample set, after preparing it at its first use; several processes may ask at once."""
    cache = cache_folder() / "sample"
    text = f"{_VERSION} {PER_CLASS} {_QUALITY}"
    root = cache / hashlib.sha256(text.encode()).hexdigest()[:12]
    archive = root / "fashion.zip"
    config = Preparation(
        source=SourceSettings(kind="path", path=str(archive)), out=root / "fashion", shard_mb=4, workers=2, decode="all"
    )
    manifest = config.out / manifests.FILE
    try:
        if archive.exists() and manifest.exists():
            return config.out
        root.mkdir(parents=True, exist_ok=True)
        with exclusive(root / "lock", 600, say):
            if not archive.exists():
                make_archive(archive)
            if not manifest.exists():
                from trainyard.prepare.build import build

                build(config)
    except OSError as error:
        raise UserError(
            f"{root} cannot be used: {error.strerror}; set TRAINYARD_CACHE to a folder that can be"
        ) from None
    return config.out


def _source() -> Path:
    """Return where the four IDX files are: named by the user, installed, or unpacked by `hack/bootstrap sample`."""
    if named := os.environ.get("TRAINYARD_SAMPLE_SOURCE"):
        return Path(named)
    installed = Path("/usr/share/datasets/fashion-mnist")
    unpacked = cache_folder() / "debian" / installed.relative_to("/")
    return unpacked if unpacked.is_dir() and not installed.is_dir() else installed


def make_archive(path: Path) -> None:
    """Write the archive; the same images give the same bytes."""
    with atomic(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, content in _members():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            # Both compression methods occur, as in real archives
            packed = name.endswith((".csv", ".txt", ".xml")) or "/val/" in name
            archive.writestr(info, content, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)


def synset(label: int) -> str:
    """Return an identifier in the form that ImageNet's have; invented, as these classes have none."""
    return f"n{10000000 + label:08d}"


def _members() -> Iterator[tuple[str, bytes]]:
    """Yield the archive's members in the order of Kaggle's archive."""
    solutions: dict[str, list[tuple[str, int]]] = {"train": [], "val": []}
    yield "ILSVRC/Annotations/CLS-LOC/val/val_00000001.xml", b"<annotation>not a picture</annotation>\n"
    for number, image in enumerate(_images("val")[0][-UNLABELLED:], 1):
        yield f"ILSVRC/Data/CLS-LOC/test/test_{number:08d}.JPEG", _encode(image)
    for split in ("train", "val"):
        images, labels = _images(split)
        for number, at in enumerate(_balanced(labels, PER_CLASS[split]), 1):
            label = int(labels[at])
            stem = f"{synset(label)}_{at}" if split == "train" else f"val_{number:08d}"
            folder = f"train/{synset(label)}" if split == "train" else "val"
            solutions[split].append((stem, label))
            yield f"ILSVRC/Data/CLS-LOC/{folder}/{stem}.JPEG", _encode(images[at])
    yield "LOC_synset_mapping.txt", "".join(f"{synset(i)} {name}\n" for i, name in enumerate(CLASSES)).encode()
    for split, rows in solutions.items():
        lines = [f"{stem},{synset(label)} 0 0 27 27 \n" for stem, label in rows]
        yield f"LOC_{split}_solution.csv", ("ImageId,PredictionString\n" + "".join(lines)).encode()


def _balanced(labels: NDArray[np.uint8], count: int) -> list[int]:
    """Choose the first images of each class, class by class as an archive lists them."""
    chosen = [np.flatnonzero(labels == label)[:count] for label in range(len(CLASSES))]
    return [int(at) for at in np.concatenate(chosen)]


def _encode(image: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return buffer.getvalue()


def _images(split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read images and labels of a split from the IDX files."""
    folder = _source()
    stem = _FILES[split]
    images = _read_idx(folder / f"{stem}-images-idx3-ubyte.gz")
    labels = _read_idx(folder / f"{stem}-labels-idx1-ubyte.gz")
    if len(images) != len(labels):
        raise UserError(f"{folder} holds {len(images)} images and {len(labels)} labels for {split}; install it again")
    return images, labels


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file: two zero bytes, type 8, number of dimensions, their sizes, then the bytes."""
    try:
        data = gzip.decompress(path.read_bytes())
        zero, kind, dimensions = struct.unpack(">HBB", data[:4])
        shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
        if (zero, kind) != (0, 8):
            raise ValueError("wrong type")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing: the sample set needs Fashion-MNIST; install it with `apt-get install "
            "dataset-fashion-mnist`, or set TRAINYARD_SAMPLE_SOURCE to a folder with its four IDX files"
        ) from None
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise UserError(f"{path} is not an IDX file ({error}); install dataset-fashion-mnist again") from None
