"""Decoders: from an encoded image to the pixels of an area of it, at the wanted size.

`data.decoder` chooses one of three. `native` is our own C code on libjpeg-turbo (trainyard/native): it decodes only the
area, at 1/2, 1/4 or 1/8 of the scale if that is enough. `torchvision` and `pillow` decode the whole image. Images
that `native` cannot decode are decoded by torchvision (CMYK, broken JPEGs) or Pillow (PNGs), and resized by the same C
code. All of them keep to `trainyard.data.limits`, and give 8-bit RGB by the rule of `trainyard.data.plain`: of a PNG
the same pixels. Of JPEGs they differ a little, so all processes must use the same one.
"""

import ctypes
import functools
import hashlib
import importlib.metadata
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor

from trainyard import native
from trainyard.core.exits import UserError
from trainyard.data import limits
from trainyard.data.changes import NOTHING, Steps, change
from trainyard.data.plain import to_rgb

log = logging.getLogger("trainyard")

Area = tuple[float, float, float, float]  # top, left, height, width, in pixels of the image
Filter = Literal["bilinear", "bicubic"]

warnings.filterwarnings("ignore", message="The image decoding and encoding capabilities of TorchVision are deprecated")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # at half of what is refused


_Three = ctypes.c_int * 3
KEPT_PIXELS = 4_000_000  # an image that was decoded whole is kept for the next area if it is no larger


class Encoded:
    """An image of which only the requested area is decoded; `shape` is (3, height, width), as a tensor's."""

    def __init__(self, data: bytes = b"", pixels: Tensor | None = None) -> None:
        self._data = data
        self._pixels = pixels
        size = _Three()
        self._native = pixels is None and not _library().trainyard_size(data, len(data), size)
        height, width = size[:2] if self._native else _size(data) if pixels is None else pixels.shape[1:]
        self._held = int(height) * int(width) if size[2] or not self._native else 0
        self.shape = (3, int(height), int(width))

    def cut(  # noqa: PLR0917
        self,
        area: Area,
        height: int,
        width: int,
        how: Filter = "bilinear",
        within: bool = True,
        wanted: Steps = NOTHING,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the area, resized with antialiasing to uint8 (3, height, width), then changed.

        With `within`, pixels outside the area do not count, as if it had been cut out first. The result is written to
        `out`, which must be contiguous or in channels_last order, else to a new tensor in channels_last order.
        """
        if out is None:
            out = torch.empty((height, width, 3), dtype=torch.uint8).permute(2, 0, 1)
        top, left, tall, wide = area
        box, bounds = native.Box(left, top, wide, tall), native.Bounds(0, 0, self.shape[2], self.shape[1])
        if within:
            bounds = native.Bounds(int(left), int(top), -int(-(left + wide) // 1), -int(-(top + tall) // 1))
        rest = (box, bounds, how == "bicubic", height, width)
        if self._native and not self._decoded_by_library(rest, wanted, out):
            # The whole image is decoded instead, if that keeps to the limits, too
            self._native, self._held = False, self.shape[1] * self.shape[2]
            _read_header(self._data).close()
        if not self._native:
            with nullcontext() if self._pixels is not None else limits.pixels.taking(self._held):
                pixels = _whole(self._data) if self._pixels is None else self._pixels
                out.copy_(self._resized(pixels, area, rest, wanted))
                self._pixels = pixels if pixels[0].numel() <= KEPT_PIXELS else self._pixels
        return out

    def _decoded_by_library(self, rest: tuple[Any, ...], wanted: Steps, out: Tensor) -> bool:
        planar = out.is_contiguous()
        assert out.dtype == torch.uint8, "the library writes bytes"
        assert planar or out.permute(1, 2, 0).is_contiguous(), "the library writes to no other order"
        make = _library().trainyard_make
        with limits.pixels.taking(self._held) if self._held else nullcontext():
            return not make(self._data, len(self._data), *rest, *wanted, planar, out.data_ptr())

    def _resized(self, pixels: Tensor, area: Area, rest: tuple[Any, ...], wanted: Steps) -> Tensor:
        _check(pixels, self.shape)
        flat, out = pixels.permute(1, 2, 0).contiguous(), torch.empty((*rest[3:], 3), dtype=torch.uint8)
        if _library().trainyard_resize(flat.data_ptr(), flat.shape[0], flat.shape[1], *rest, out.data_ptr()):
            raise UserError(f"{area} of an image of {tuple(flat.shape)} cannot be resized to {rest[3]} x {rest[4]}")
        change(out, wanted)
        return out.permute(2, 0, 1)


AnyImage = Encoded | Tensor


@dataclass(frozen=True)
class Decoder:
    """A way of decoding and of changing; two processes whose `description` is the same get the same pixels."""

    name: str
    description: str
    open: Callable[[bytes], AnyImage]

    def image(self, content: bytes | Tensor) -> AnyImage:
        """Return a sample of a dataset as an image: encoded bytes, or pixels (3, height, width) as they are."""
        if isinstance(content, Tensor):
            return Encoded(pixels=content) if self.name == "native" else content
        return self.open(content)


def choose(name: str) -> Decoder:
    """Return the decoder that `data.decoder` names; `auto`: the first available of native, torchvision and pillow."""
    if name == "auto":
        name = "native" if native.library() else "torchvision" if torchvisions() else "pillow"
    pillow = f"Pillow {PIL.__version__}"
    torchvision = f"torchvision {importlib.metadata.version('torchvision')}"
    policies = f"augmented by {torchvision}"
    if name == "pillow":
        return Decoder(name, f"{pillow}, {policies}", _open_with_pillow)
    if name == "torchvision":
        if torchvisions() is None:
            raise UserError("data.decoder = 'torchvision': torchvision.io is not here; use auto or pillow")
        return Decoder(name, f"{torchvision}, then {pillow}, {policies}", _open_whole)
    if native.library() is None:
        raise UserError(
            "data.decoder = 'native': it was not built into this installation (that takes gcc and libjpeg-turbo's "
            "headers when the wheel is made); use auto, torchvision or pillow"
        )
    version = _library().trainyard_version().decode()
    source = hashlib.sha256(native.sources()).hexdigest()[:8]
    whole = f"then {torchvision}, then {pillow}"
    return Decoder(name, f"native {source} on {version}, {whole}, augmented by native {source}", Encoded)


def agree(gather: Callable[[Any], list[Any]], description: str) -> None:
    """Raise UserError unless all processes decode in the same way; `gather` returns each rank's object."""
    found = gather(description)
    odd = next((rank for rank, other in enumerate(found) if other != found[0]), None)
    if odd is not None:
        raise UserError(
            f"data.decoder: rank 0 decodes images with {found[0]}, rank {odd} with {found[odd]}; their pixels "
            "differ, so use one image on all nodes, or set data.decoder to what all of them have"
        )
    log.info("images are decoded by %s", description)


def _library() -> ctypes.CDLL:
    library = native.library()
    assert library is not None, "choose() has looked"
    return library


@functools.cache
def torchvisions() -> Callable[[Tensor], Tensor] | None:
    """Get the decoder of torchvision, which releases Python's lock; None without it, or where a release has dropped it.

    torchvision is imported at the first image that needs it: that takes a second, and `native` needs it for few.
    """
    try:
        from torchvision.io import ImageReadMode, decode_image
    except ImportError:
        return None
    return functools.partial(decode_image, mode=ImageReadMode.RGB)


def _size(data: bytes) -> tuple[int, int]:
    """Height and width as the header says."""
    with _read_header(data) as header:
        return header.height, header.width


def _open_whole(data: bytes) -> Tensor:
    height, width = _size(data)
    with limits.pixels.taking(height * width):
        return _whole(data)


def _open_with_pillow(data: bytes) -> Tensor:
    height, width = _size(data)
    with limits.pixels.taking(height * width):
        return _with_pillow(data)


def _whole(data: bytes) -> Tensor:
    """All of an image as RGB, shape (3, height, width); Pillow reads PNGs, and JPEGs that torchvision cannot.

    torchvision 0.29.2 ends the process (SIGSEGV) at the first error that libpng finds in a PNG's data. It has no limits
    of its own: the caller has read the header.
    """
    decode_image = None if limits.is_png(data) else torchvisions()
    if decode_image is None:
        return _with_pillow(data)
    try:
        pixels = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    except RuntimeError:
        return _with_pillow(data)
    _check(pixels)
    return pixels


def _check(pixels: Tensor, shape: tuple[int, ...] | None = None) -> None:
    """Raise UserError unless an image was decoded to RGB in bytes: C and whatever follows would take it for that."""
    if pixels.dtype != torch.uint8 or pixels.dim() != 3 or pixels.shape[0] != 3 or shape not in (None, pixels.shape):
        wanted = "(3, height, width)" if shape is None else shape
        raise UserError(
            f"an image was decoded to {pixels.dtype} of shape {tuple(pixels.shape)}, and not to torch.uint8 of shape "
            f"{wanted}; set data.decoder: pillow, or convert that sample to a JPEG"
        )


def _read_header(data: bytes) -> Image.Image:
    """Open an image within the limits; raises UserError."""
    with _in_words():
        return limits.read_header(data)


def _with_pillow(data: bytes) -> Tensor:
    with _in_words(), limits.read_header(data) as image:
        return torch.from_numpy(np.array(to_rgb(image))).permute(2, 0, 1).contiguous()


@contextmanager
def _in_words() -> Iterator[None]:
    """Raise UserError where an image is broken; Pillow raises many kinds then."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise UserError(
            f"an image cannot be decoded ({error}); repair or leave out that sample, whose file a preparation with "
            "decode: 'all' names"
        ) from error
