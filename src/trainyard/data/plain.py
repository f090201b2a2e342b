"""The one rule by which an image of any kind becomes 8-bit grey or RGB, for every decoder and for preparation.

- 1, 2 and 4 bits are stretched to 0..255, and a palette's colours looked up.
- 16 bits: value >> 8, which PNG's standard calls acceptable; white stays white whatever else the file holds.
- Alpha and transparent colours are dropped: a pixel is what is stored, not blended with a background that nobody chose.
- CMYK: what Pillow makes of it, without colour profiles.
- 32-bit integers and floats (TIFF) are refused: nothing in the file says which value is white.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image


def to_grey_or_rgb(image: "Image.Image") -> "Image.Image":
    """Get a Pillow image in mode L or RGB; raises ValueError, and what Pillow raises where it cannot be decoded."""
    from PIL import Image

    if image.mode in ("L", "RGB"):
        image.load()
        return image
    # Older versions of Pillow read a PNG of 16 bits as 32
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its samples have 32 bits, of which no value is known to be white; convert it to 8 or 16")
    return image.convert("RGB")


def to_rgb(image: "Image.Image") -> "Image.Image":
    """Return the same in mode RGB."""
    return to_grey_or_rgb(image).convert("RGB")
