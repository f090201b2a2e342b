"""PNGs of every kind from raw samples: all colour types and depths, interlaced or not, with any chunks."""

import struct
import zlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.int64]  # (height, width, samples of a pixel)
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
SAMPLES = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
# Every combination that the standard has
KINDS = [(GREY, 1), (GREY, 2), (GREY, 4), (GREY, 8), (GREY, 16), (RGB, 8), (RGB, 16), (PALETTE, 1), (PALETTE, 2),
         (PALETTE, 4), (PALETTE, 8), (GREY_ALPHA, 8), (GREY_ALPHA, 16), (RGBA, 8), (RGBA, 16)]  # fmt: skip
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def drawn(generator: np.random.Generator, height: int, width: int, kind: tuple[int, int]) -> Samples:
    """Samples of any value, the least and the greatest among them."""
    colour, bits = kind
    samples = generator.integers(0, 2**bits, (height, width, SAMPLES[colour]))
    samples[0, 0], samples[-1, -1] = 2**bits - 1, 0
    return samples


def png(
    samples: Samples, kind: tuple[int, int], interlaced: bool = False, before: bytes = b"", after: bytes = b""
) -> bytes:
    """A PNG with chunks before and after its data."""
    height, width, _ = samples.shape
    parts = [samples[y::down, x::across] for x, y, across, down in _PASSES] if interlaced else [samples]
    raw = b"".join(b"\0" + _packed(row, kind[1]) for part in parts if part.size for row in part)
    header = struct.pack(">IIBBBBB", width, height, kind[1], kind[0], 0, 0, int(interlaced))
    data = chunk(b"IDAT", zlib.compress(raw))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + data + after + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@cache
def text(size: int) -> bytes:
    """A text of so many letters, packed as Photoshop packs its XMP."""
    return chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b"adobe " * (size // 6)))


def rule(samples: Samples, kind: tuple[int, int], palette: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What training has to see: (height, width, 3)."""
    colour, bits = kind
    if colour == PALETTE:
        return palette[samples[..., 0]]
    seen = samples[..., :3] if colour in (RGB, RGBA) else samples[..., :1].repeat(3, axis=2)
    return (seen >> 8 if bits == 16 else seen * 255 // (2**bits - 1)).astype(np.uint8)


def _packed(row: NDArray[Any], bits: int) -> bytes:
    if bits == 16:
        return row.astype(">u2").tobytes()
    single = np.unpackbits(row.reshape(-1, 1).astype(np.uint8), axis=1)[:, 8 - bits :]
    return np.packbits(single).tobytes()
