"""Limits on an encoded image, for every decoder: its format, pixels and scans, and memory beside others.

A small file can claim a huge image, or ask for hours of decoding with thousands of scans. Every decoder stays within
these limits: `trainyard/native/jpeg.c` has the same numbers, and what it does not take passes `read_header` first.
"""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainyard.data.metadata import bare_jpeg, bare_png, jpeg_frame

if TYPE_CHECKING:
    from PIL import Image

warnings.filterwarnings("ignore", category=UserWarning, module="PIL")  # about metadata, which no pixel depends on

# Every further format is another library that reads what strangers wrote
FORMATS = ("JPEG", "PNG")
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"  # how such files begin
JPEG_END = b"\xff\xd9"  # how one ends, unless it is cut short or something is behind it
LARGEST_PIXELS = 128_000_000
# Decoding works through the whole image once for each scan; photos have about 10
MOST_SCANS = 500
MOST_WORK = 2_000_000_000
_START_OF_SCAN = b"\xff\xda"
_PROGRESSIVE = 0xC2
_USUAL_FRAMES = (0xC0, 0xC1, _PROGRESSIVE)  # baseline, extended and progressive


class Budget:
    """An amount that threads share: each takes a part of it, and waits while too little is left."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, amount: int) -> Iterator[None]:
        """Hold this part of the budget; it must not be more than the total."""
        with self._changed:
            self._changed.wait_for(lambda: self._left >= amount)
            self._left -= amount
        try:
            yield
        finally:
            with self._changed:
                self._left += amount
                self._changed.notify_all()


# Pixels that the threads of a process hold decoded at a time; with copies and coefficients up to 12 bytes each, 1.5 GB
pixels = Budget(LARGEST_PIXELS)


def read_header(content: bytes | memoryview) -> "Image.Image":
    """Open an image with Pillow, which reads no more than its header.

    Metadata refuses no image. Raises ValueError, whose message says which limit it exceeds, or what Pillow raises on
    a broken header.
    """
    from PIL import Image

    check_format(content)
    content = bare(content)
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Exception:
        if is_png(content):
            raise
        # Of metadata that is odd, Pillow refuses what libjpeg does not even read
        image = Image.open(io.BytesIO(bare_jpeg(content)), formats=FORMATS)
    check_size(image)
    scans = 1 if image.format == "PNG" else _scans(content)
    most = _most_scans(image.width * image.height)
    if scans > most:
        image.close()
        raise ValueError(f"it has {scans} scans; an image of its size may have {most}")
    return image


def is_usual_jpeg(content: bytes | memoryview) -> bool:
    """Whether every decoder takes a JPEG by its header: 8 bits, grey or three colours, Huffman codes, within limits."""
    marker, bits, height, width, colours = jpeg_frame(content) or (0,) * 5
    if marker not in _USUAL_FRAMES or bits != 8 or colours not in (1, 3) or not 0 < height * width <= LARGEST_PIXELS:
        return False
    # Counting takes longer than all else; those that are not progressive have one scan, or one a colour
    return marker != _PROGRESSIVE or _scans(content) <= _most_scans(height * width)


def _scans(content: bytes | memoryview) -> int:
    """Count at least all scans of a JPEG: in an image's data their marker can be nothing else."""
    return bytes(content).count(_START_OF_SCAN)


def _most_scans(pixels: int) -> int:
    return min(MOST_SCANS, MOST_WORK // pixels)


def check_size(image: "Image.Image") -> None:
    """Close an image that claims too many pixels, and raise ValueError."""
    if image.width * image.height > LARGEST_PIXELS:
        image.close()
        raise ValueError(f"it claims {image.width:,} x {image.height:,} pixels; {LARGEST_PIXELS:,} are the most")


def check_format(content: bytes | memoryview) -> None:
    """Raise ValueError where the first bytes are not those of a format that is decoded."""
    if not is_jpeg(content) and not is_png(content):
        raise ValueError("it is neither a JPEG nor a PNG; convert it")


def is_jpeg(content: bytes | memoryview) -> bool:
    """Tell a JPEG by its first bytes."""
    return content[: len(JPEG)] == JPEG


def is_png(content: bytes | memoryview) -> bool:
    """Tell a PNG by its first bytes."""
    return content[: len(PNG)] == PNG


def bare(content: bytes | memoryview) -> bytes | memoryview:
    """Return what decoders get of an image: of a PNG what its pixels depend on, of others all."""
    return bare_png(content) if is_png(content) else content
