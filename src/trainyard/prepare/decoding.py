"""Checks that an image can be decoded, and converts or re-encodes it, before it goes into a shard.

Re-encoding is declared in the settings and off by default. It only makes images smaller: one whose shorter side is no
longer than the setting keeps its bytes, unless it is CMYK or a PNG (under any name), which becomes an RGB JPEG. Only
the same version of Pillow and of its JPEG library gives the same bytes, so both are part of the plan.
"""

import io
from typing import TYPE_CHECKING

from trainyard.data import limits
from trainyard.data.plain import to_grey_or_rgb
from trainyard.prepare import converting, formats
from trainyard.prepare.settings import Reencode

if TYPE_CHECKING:
    from PIL import Image

CHECK_ONE_OF = 100
# Undecodable images that are named before a preparation gives up
NAMED = 20


class UndecodableError(Exception):
    """A member that cannot be decoded as an image. The message says why."""


def wants_check(decode: str, crc32: int) -> bool:
    """Tell whether an image with this CRC-32 is decoded: the choice is the same at every run."""
    return decode == "all" or (decode == "sampled" and crc32 % CHECK_ONE_OF == 0)


def check(content: memoryview | bytes) -> None:
    """Decode an image completely, as training will where no other decoder can; raises UndecodableError."""
    with _open(content) as image, limits.pixels.taking(image.width * image.height):
        _load(image)


def convert(content: memoryview) -> bytes:
    """Make a PNG of an image in another format; raises UndecodableError."""
    try:
        return converting.convert(content)
    except Exception as error:
        raise UndecodableError(_words(error)) from None


def reencode(content: memoryview | bytes, settings: Reencode) -> bytes:
    """Return the image as the settings ask; its own bytes when there is nothing to do. Raises UndecodableError."""
    with _open(content) as image, limits.pixels.taking(image.width * image.height):
        odd = image.format != "JPEG" or image.mode not in ("RGB", "L")
        width, height = image.size
        scale = settings.resize / min(width, height)
        if not odd and scale >= 1:
            _load(image)
            return bytes(content)
        size = (max(1, round(width * scale)), max(1, round(height * scale))) if scale < 1 else (width, height)
        if image.mode in ("RGB", "L"):
            # libjpeg's own scaling by 1/2, 1/4 or 1/8 first, down to twice the wanted size: several times faster
            image.draft(image.mode, (2 * size[0], 2 * size[1]))
        return _encode(_load(image), size, settings.quality)


def encoder() -> str:
    """Name the versions that determine the bytes of a re-encoded image."""
    import PIL
    from PIL import features

    turbo = features.version("libjpeg_turbo")
    library = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {features.version('jpg')}"
    return f"Pillow {PIL.__version__}, {library}"


def _encode(image: "Image.Image", size: tuple[int, int], quality: int) -> bytes:
    from PIL import Image

    try:
        if image.size != size:
            image = image.resize(size, Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    except Exception as error:
        raise UndecodableError(_words(error)) from None
    return buffer.getvalue()


def _open(content: memoryview | bytes) -> "Image.Image":
    """Read an image's header, and refuse what would take too much memory before it does."""
    try:
        return limits.read_header(content)
    except Exception as error:
        if other := converting.format_of(content):
            remedy = f" (convert: 'png' does that with a {other})"
        else:
            remedy = f" (it is {other})" if (other := formats.other_format(content)) else ""
        raise UndecodableError(_words(error) + remedy) from None


def _load(image: "Image.Image") -> "Image.Image":
    """Decode to 8-bit grey or RGB."""
    try:
        return to_grey_or_rgb(image)
    except Exception as error:
        raise UndecodableError(_words(error)) from None


def _words(error: Exception) -> str:
    """Return the message of a library's error, in one short line."""
    text = " ".join(str(error).split())
    # Pillow names the buffer's address here, which differs at every run
    text = "no known image format" if text.startswith("cannot identify image file") else text
    return f"{type(error).__name__}: {text[:200]}"
