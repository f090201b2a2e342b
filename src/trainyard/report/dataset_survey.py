"""Looks through a prepared dataset: counts, sizes, images that occur twice, and odd ones.

Counts and duplicates are those of all images: indexes tell which images may be equal, and only these are read.
Sizes and oddities come from the headers of at most MOST_LOOKED_AT images, evenly chosen. Nothing is random, so the
same folder gives the same survey.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainyard.data import limits
from trainyard.data.metadata import png_says
from trainyard.shards import manifest as manifests
from trainyard.shards.index import INDEX_DTYPE, load_index
from trainyard.shards.manifest import Manifest
from trainyard.shards.reader import Shards, open_splits

if TYPE_CHECKING:
    from PIL import Image

MOST_LOOKED_AT = 10_000
LONGEST_SHAPE = 3.0  # the longer side over the shorter one
SMALL = 1 / 4  # of the median of the shorter sides
EMPTY = 1 / 8  # of the median of bytes per pixel
READERS = 8
_ORIENTATION = 0x0112  # EXIF's tag; 1 is upright


@dataclass(frozen=True, order=True)
class ListedImage:
    """An image's place in the dataset."""

    split: str
    sample: int
    label: int


@dataclass(frozen=True)
class Header:
    """An image's header; sizes in pixels and bytes."""

    image: ListedImage
    width: int
    height: int
    bytes: int
    format: str
    mode: str
    turned: bool
    bits: int  # of a sample
    transparent: bool


@dataclass(frozen=True)
class Survey:
    """A dataset as found: `counts` of each split are (classes,); `copies` are images of equal content."""

    root: Path
    manifest: Manifest
    keys: list[str]  # classes as the source calls them
    names: list[str]  # the same for people
    counts: dict[str, NDArray[np.int64]]
    headers: list[Header]
    copies: list[list[ListedImage]]
    odd: list[tuple[Header, str]]


def survey(root: Path) -> Survey:
    """Look through a prepared folder; raises UserError and StorageError."""
    manifest = manifests.load(root)
    splits = open_splits(root, manifest.splits)
    try:
        headers = list(_headers(splits))
        return Survey(
            root=root,
            manifest=manifest,
            keys=next(iter(splits.values())).class_keys,
            names=next(iter(splits.values())).class_names,
            counts={name: np.bincount(one.labels, minlength=manifest.classes) for name, one in splits.items()},
            headers=headers,
            copies=_copies(root, manifest, splits),
            odd=list(_odd(headers)),
        )
    finally:
        for one in splits.values():
            one.close()


def read(root: Path, images: list[ListedImage]) -> list[bytes]:
    """Return the encoded images; raises UserError and StorageError."""
    splits = open_splits(root, {one.split for one in images})
    try:
        return [splits[one.split].read(one.sample) for one in images]
    finally:
        for opened in splits.values():
            opened.close()


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """At most `most` of the numbers below `count`, at equal distances."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)) if count else np.empty(0, np.int64)


def _headers(splits: dict[str, Shards]) -> Iterator[Header]:
    total = sum(map(len, splits.values()))
    with ThreadPoolExecutor(READERS) as pool:
        for name, shards in splits.items():
            chosen = evenly(len(shards), max(1, MOST_LOOKED_AT * len(shards) // max(1, total)))
            places = [ListedImage(name, int(i), int(shards.labels[i])) for i in chosen]
            yield from (found for found in pool.map(_header, [shards] * len(places), places) if found)


def _header(shards: Shards, image: ListedImage) -> Header | None:
    """Return an image's header; None where it has none that can be read (a preparation may leave that unchecked)."""
    content = shards.read(image.sample)
    try:
        with limits.read_header(content) as found:
            bits, transparent = png_says(content) if found.format == "PNG" else (8, False)
            return Header(
                image, *found.size, len(content), str(found.format), found.mode, _turned(found), bits,
                transparent or "A" in found.mode,
            )  # fmt: skip
    except (OSError, ValueError, SyntaxError):
        return None


def _turned(image: "Image.Image") -> bool:
    try:
        return image.getexif().get(_ORIENTATION, 1) not in (0, 1)
    except Exception:  # broken EXIF says nothing
        return False


def _copies(root: Path, manifest: Manifest, splits: dict[str, Shards]) -> list[list[ListedImage]]:
    """Return groups of images with the same content, first those that occur most often."""
    names = list(splits)
    index = {
        name: np.concatenate(
            [np.empty(0, INDEX_DTYPE), *(load_index(root, one, manifest.classes) for one in part.shards)]
        )
        for name, part in manifest.splits.items()
    }
    starts = np.cumsum([0, *(len(index[name]) for name in names)])
    whole = np.concatenate([index[name] for name in names])
    keys = whole["size"].astype(np.uint64) << np.uint64(32) | whole["crc32"]
    _, group, count = np.unique(keys, return_inverse=True, return_counts=True)

    def image(i: int) -> ListedImage:
        split = int(np.searchsorted(starts, i, side="right")) - 1
        return ListedImage(names[split], int(i - starts[split]), int(whole["label"][i]))

    candidates = [(int(group[i]), image(int(i))) for i in np.flatnonzero(count[group] > 1)]
    equal: dict[tuple[int, bytes], list[ListedImage]] = {}
    with ThreadPoolExecutor(READERS) as pool:
        contents = pool.map(lambda one: splits[one[1].split].read(one[1].sample), candidates)
        for (key, place), content in zip(candidates, contents, strict=True):
            equal.setdefault((key, hashlib.sha256(content).digest()), []).append(place)
    return sorted((one for one in equal.values() if len(one) > 1), key=lambda one: (-len(one), one[0]))


def _odd(headers: list[Header]) -> Iterator[tuple[Header, str]]:
    """Images that differ much from the others, each with what is odd about it."""
    if not headers:
        return
    side = float(np.median([min(one.width, one.height) for one in headers]))
    density = float(np.median([one.bytes / (one.width * one.height) for one in headers]))
    coloured = np.mean([one.mode == "RGB" for one in headers]) > 1 / 2
    for one in headers:
        short, long = sorted((one.width, one.height))
        if long > LONGEST_SHAPE * short:
            yield one, f"{long / short:.1f} times as long as wide"
        elif short < SMALL * side:
            yield one, "much smaller than the others"
        elif one.bytes / (one.width * one.height) < EMPTY * density:
            yield one, "nearly empty (few bytes for its size)"
        elif one.turned:
            yield one, "its EXIF says that it is turned; training shows it as stored"
        elif one.bits > 8:
            yield one, f"{one.bits} bits; training uses the higher 8"
        elif one.transparent:
            yield one, "transparent in parts; training sees the colours there"
        elif coloured and one.mode != "RGB":
            yield one, {"L": "grey", "CMYK": "CMYK, converted"}.get(one.mode, f"mode {one.mode}, converted")
