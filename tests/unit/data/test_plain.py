"""One rule for every decoder's pixels: all kinds of PNGs, through all ways, against the rule computed from samples."""

import io
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.unit.data import pngs
from tests.unit.data.test_decode import built, encoded, photo
from trainyard.core.exits import UserError
from trainyard.data import decode, limits
from trainyard.data.plain import to_grey_or_rgb
from trainyard.prepare import decoding
from trainyard.prepare.settings import Reencode

__all__ = ["built"]
DECODERS = ("native", "torchvision", "pillow")
SIZES = ((1, 1), (1, 9), (7, 3), (8, 8), (13, 5), (17, 34))
SAVED = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")  # Pillow's modes that it writes as PNG


class Case(NamedTuple):
    name: str
    data: bytes
    wanted: NDArray[np.uint8]


def cases() -> Iterator[Case]:
    """All colour types and depths x interlaced or not x transparent colours or not x sizes, with metadata at random."""
    generator = np.random.Generator(np.random.Philox(key=16))
    for kind in pngs.KINDS:
        for interlaced in (False, True):
            for transparent in (False, True):
                for size in SIZES:
                    samples = pngs.drawn(generator, *size, kind)
                    palette = generator.integers(0, 256, (2 ** min(8, kind[1]), 3)).astype(np.uint8)
                    before = pngs.chunk(b"PLTE", palette.tobytes()) if kind[0] == pngs.PALETTE else b""
                    if transparent and kind[0] in (pngs.GREY, pngs.RGB):
                        before += pngs.chunk(b"tRNS", samples[0, 0].astype(">u2").tobytes())
                    elif transparent and kind[0] == pngs.PALETTE:
                        before += pngs.chunk(b"tRNS", bytes(len(palette)))
                    after = (b"", pngs.text(60), pngs.chunk(b"eXIf", b"MM\0*"))[generator.integers(3)]
                    data = pngs.png(samples, kind, interlaced, before, after)
                    name = f"{kind} {size} {interlaced=} {transparent=}"
                    yield Case(name, data, pngs.rule(samples, kind, palette))


def seen(name: str, data: bytes) -> NDArray[np.uint8]:
    """What a decoder makes of a picture, (height, width, 3)."""
    opened = decode.choose(name).open(data)
    height, width = opened.shape[1:]
    pixels = opened.cut((0, 0, height, width), height, width) if isinstance(opened, decode.Encoded) else opened
    assert pixels.dtype == torch.uint8
    return pixels.permute(1, 2, 0).numpy()


def reencoded_like(data: bytes, wanted: NDArray[np.uint8]) -> bool:
    """Whether re-encoding gives the JPEG of these very pixels."""
    found = decoding.reencode(memoryview(data), Reencode(resize=64))
    with Image.open(io.BytesIO(found)) as jpeg:
        return found == decoding._encode(Image.fromarray(wanted).convert(jpeg.mode), jpeg.size, 90)


def test_all_ways_give_the_same_pixels_of_every_png() -> None:
    drawn = list(cases())
    assert len(drawn) == 15 * 2 * 2 * len(SIZES) == 360
    for case in drawn:
        for name in DECODERS:
            assert np.array_equal(seen(name, case.data), case.wanted), (name, case.name)
        assert reencoded_like(case.data, case.wanted), case.name


@pytest.mark.parametrize("mode", SAVED)
def test_all_ways_give_the_same_pixels_of_every_mode_that_pillow_writes(mode: str) -> None:
    generator = np.random.Generator(np.random.Philox(key=7))
    for size in SIZES:
        if mode == "I;16":
            values = generator.integers(0, 2**16, size).astype(np.uint16)
            picture, wanted = Image.fromarray(values), (values >> 8).astype(np.uint8)[..., None].repeat(3, axis=2)
        else:
            picture = Image.fromarray(generator.integers(0, 256, (*size, 4)).astype(np.uint8), "RGBA").convert(mode)
            wanted = np.asarray(picture.convert("RGB"))
        data = encoded(picture, "PNG")
        for name in DECODERS:
            assert np.array_equal(seen(name, data), wanted), (name, size)
        assert reencoded_like(data, wanted)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpegs_are_seen_as_pillow_shows_them(mode: str) -> None:
    data = encoded(photo(40, 56).convert(mode))
    with Image.open(io.BytesIO(data)) as picture:
        wanted = np.asarray(picture.convert("RGB")).astype(int)
    for name in DECODERS:
        assert np.abs(seen(name, data) - wanted).max() <= 1, name


def test_samples_of_32_bits_are_refused_since_nobody_says_what_is_white() -> None:
    for kind in (np.int32, np.float32):
        with pytest.raises(ValueError, match="no value is known to be white"):
            to_grey_or_rgb(Image.fromarray(np.ones((4, 4), kind)))


@pytest.mark.parametrize("pixels", [
    torch.zeros(3, 8, 8, dtype=torch.uint16), torch.zeros(3, 8, 8), torch.zeros(1, 8, 8, dtype=torch.uint8),
    torch.zeros(4, 8, 8, dtype=torch.uint8),
])  # fmt: skip
def test_what_is_no_rgb_in_bytes_never_reaches_the_c_library(
    pixels: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"decoded to torch\..* of shape .* not to torch.uint8"):
        decode.Encoded(pixels=pixels).cut((0, 0, 8, 8), 4, 4)
    monkeypatch.setattr(decode, "torchvisions", lambda: lambda data: pixels)
    for name in ("native", "torchvision"):
        with pytest.raises(UserError, match=r"decoded to torch\..* of shape .* not to torch.uint8"):
            seen(name, encoded(photo(8, 8).convert("CMYK")))


@pytest.mark.parametrize("at", ["data", "checksum"])
def test_a_png_that_libpng_finds_broken_does_not_end_the_process(at: str) -> None:
    """torchvision's decoder ends it; all of ours see the same pixels, or an error."""
    data = bytearray(encoded(photo(20, 30), "PNG"))
    begin = data.index(b"IDAT") + 4
    data[begin + 10 if at == "data" else begin + int.from_bytes(data[begin - 8 : begin - 4])] ^= 0xFF
    results = set()
    for name in DECODERS:
        try:
            results.add(seen(name, bytes(data)).tobytes())
        except UserError:
            results.add(b"")
    assert len(results) == 1


@pytest.mark.parametrize("name", DECODERS)
def test_metadata_refuses_no_picture(name: str) -> None:
    """Texts and profiles of any size, wrong checksums of theirs; in a JPEG, segments that are cut short."""
    generator = np.random.Generator(np.random.Philox(key=2))
    kind = (pngs.RGB, 8)
    samples = pngs.drawn(generator, 9, 12, kind)
    large, wrong = pngs.text(70_000_000), pngs.text(60)[:-1] + b"x"
    for before, after in ((large, b""), (b"", large), (wrong, b"")):
        data = pngs.png(samples, kind, before=before, after=after)
        assert np.array_equal(seen(name, data), samples)
    data = encoded(photo(40, 56))
    wanted = seen(name, data)
    for marker, said in ((0xE2, b"ICC_PROFILE\0"), (0xE0, b"JFIF\0"), (0xEE, b"Adobe"), (0xE1, b"Exif\0\0II*\0\xff")):
        segment = bytes([0xFF, marker]) + (len(said) + 2).to_bytes(2, "big") + said
        assert np.array_equal(seen(name, data[:2] + segment + data[2:]), wanted), said


def test_a_large_text_is_not_unpacked() -> None:
    """Nor are others that libpng would unpack, up to 8 MB each."""
    data = pngs.png(np.zeros((2, 2, 1), np.int64), (pngs.GREY, 8), before=pngs.text(6_000_000) * 3)
    assert len(limits.bare(data)) < 100 < len(data)
    assert limits.bare(limits.bare(data)) == limits.bare(data)
