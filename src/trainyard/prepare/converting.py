"""Makes PNGs of images in formats that training does not read, where `convert` asks for it.

A PNG holds the very pixels that trainyard.data.plain makes of an image, 8-bit grey or RGB, also of a lossy WebP.
Training's own decoders stay few, since every further one reads what strangers wrote.
"""

import io
from typing import TYPE_CHECKING

import numpy as np

from trainyard.data import limits
from trainyard.data.plain import to_grey_or_rgb

if TYPE_CHECKING:
    from PIL import Image

LARGEST_IMAGE = 64 << 20  # bytes of a member of an archive, and of a PNG made of one: bounds what is in memory
_STARTS = {b"GIF87a": "GIF", b"GIF89a": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}
FORMATS = frozenset((*_STARTS.values(), "WEBP"))
# TIFF's tags
_KIND, _BITS, _BLACK_IS, _NUMBERS, _DNG = 254, 258, 262, 339, 50706
_WHITE_IS_ZERO, _UNSIGNED = 0, 1
_REDUCED, _MASK = 1, 4  # bits of _KIND: a smaller copy of another page, and the shape of one
_MOST_PAGES = 100
_CANON = b"CR"  # behind the header of a TIFF that is Canon's raw image


def format_of(content: bytes | memoryview) -> str:
    """Return the name of the format that `convert` takes, by an image's first bytes; empty for all others."""
    start = bytes(content[:12])
    if start[:4] == b"RIFF" and start[8:] == b"WEBP":
        return "WEBP"
    return next((name for begin, name in _STARTS.items() if start.startswith(begin)), "")


def convert(content: bytes | memoryview) -> bytes:
    """Get a WebP, BMP, GIF or TIFF as a PNG, of an animation its first image.

    Raises ValueError, and what Pillow raises.
    """
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=(format_of(content),)) as image:
        limits.check_size(image)
        if image.format == "TIFF":
            _check_pages(image, bytes(content[8:10]))
        with limits.pixels.taking(image.width * image.height):
            # Anew, without what a file says beside its pixels: a PNG would hold it, too
            pixels = Image.fromarray(np.asarray(to_grey_or_rgb(_full_range(image))))
            buffer = io.BytesIO()
            pixels.save(buffer, "PNG")
    if buffer.tell() > LARGEST_IMAGE:
        raise ValueError(f"as a PNG it has more than {LARGEST_IMAGE >> 20} MiB; make it smaller")
    return buffer.getvalue()


def converter() -> str:
    """Name the versions that determine the bytes of a converted image."""
    import PIL
    from PIL import features

    libraries = (f"{name} {features.version(name) or 'none'}" for name in ("zlib_ng", "zlib", "webp", "libtiff"))
    return f"Pillow {PIL.__version__}, {', '.join(libraries)}"


def _check_pages(image: "Image.Image", behind_header: bytes) -> None:
    """Raise ValueError where the first page of a TIFF is a preview, or another page is an image, too."""
    tags = getattr(image, "tag_v2", {})
    if behind_header == _CANON or _DNG in tags or tags.get(_KIND, 0) & _REDUCED:
        raise ValueError("it is a camera's raw image, or begins with a smaller copy of another page; convert it")
    if _has_more_pages(image):
        raise ValueError("it has several pages, of which training would see the first alone; save each as a file")
    image.seek(0)


def _has_more_pages(image: "Image.Image") -> bool:
    """Whether a TIFF has a second page that is no smaller copy of another, nor a mask."""
    for page in range(1, _MOST_PAGES):
        try:
            image.seek(page)
        except Exception:  # there is none, or it is broken, and nobody needs it
            return False
        if not getattr(image, "tag_v2", {}).get(_KIND, 0) & (_REDUCED | _MASK):
            return True
    return True


def _full_range(image: "Image.Image") -> "Image.Image":
    """Return a TIFF's grey of 9 to 16 bits with white at 65535, as PNG has it; other images as they are."""
    tags = getattr(image, "tag_v2", {})
    if any(kind > _UNSIGNED for kind in tags.get(_NUMBERS, ())):
        raise ValueError("its samples are signed or floats, of which no value is known to be white; convert it")
    if not image.mode.startswith("I;16"):
        return image
    from PIL import Image

    values = np.asarray(image).astype(np.uint16) << (16 - tags.get(_BITS, (16,))[0])
    return Image.fromarray(np.uint16(65535) - values if tags.get(_BLACK_IS) == _WHITE_IS_ZERO else values)
