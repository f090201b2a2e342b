"""JPEGs of every kind for tests, encoded by a small C program on libjpeg, which writes what Pillow cannot."""

import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

SAMPLINGS = {
    "4:4:4": "1x1,1x1,1x1", "4:2:2": "2x1,1x1,1x1", "4:2:0": "2x2,1x1,1x1", "4:4:0": "1x2,1x1,1x1",
    "4:1:1": "4x1,1x1,1x1", "uneven": "2x2,2x1,1x2", "grey": "1x1", "grey 2x2": "2x2",
}  # fmt: skip
SIZES = ((187, 251), (1, 1), (8, 8), (16, 17), (33, 64), (5, 400), (300, 3), (90, 131))  # height, width


COMPILED = tempfile.TemporaryDirectory(prefix="encode-jpeg-")  # removed when the process ends


@cache
def encoder() -> Path:
    """Compile the program."""
    out = Path(COMPILED.name) / "encode_jpeg"
    source = Path(__file__).with_name("encode_jpeg.c")
    subprocess.check_call(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(out), "-ljpeg"])
    return out


@cache
def pixels(height: int, width: int) -> "np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]":
    """Smooth colours, edges and a little noise, as photos have."""
    generator = np.random.Generator(np.random.Philox(key=[height, width]))
    coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    colours = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    colours[height // 3 : height // 2, width // 4 :] //= 3
    return (colours + generator.integers(-8, 9, colours.shape)).clip(0, 255).astype(np.uint8)


def encoded(
    height: int, width: int, sampling: str = "4:2:0", quality: int = 90, interval: int = 0, *, kind: str = "b"
) -> bytes:
    """A JPEG with restart markers after every `interval` MCUs; letters of `kind` as in encode_jpeg.c."""
    shape = pixels(height, width)
    factors = SAMPLINGS[sampling]
    if "c" in kind:
        shape, factors = np.concatenate([shape, shape[:, :, :1]], 2), "1x1,1x1,1x1,1x1"
    if sampling.startswith("grey"):
        shape = shape[:, :, :1]
    words = [str(word) for word in (width, height, shape.shape[2], quality, factors, interval, kind)]
    return subprocess.run(
        [encoder(), *words], input=np.ascontiguousarray(shape).tobytes(), stdout=subprocess.PIPE, check=True
    ).stdout


def behind_header(data: bytes) -> int:
    """Where the scan's first byte lies."""
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4])


def too_large_a_coefficient() -> bytes:
    """A picture with a number of 15 bits, which none writes, and more metadata than libjpeg first has room for."""
    plain = encoded(8, 8, "grey")
    table = plain.index(b"\xff\xc4\x00\x1f\x00")
    comment, code = b"\xff\xfe\xf0\x00" + bytes(0xEFFE), b"\xff\xc4\x00\x14\x00\x01" + bytes(15) + b"\x0f"
    return plain[:table] + comment + code + plain[table + 33 : behind_header(plain)] + b"\x7f\xff\x00\xaf\xff\xd9"
