"""Reading areas by restart segments gives the pixels of reading everything; rewriting changes no coefficient."""

import ctypes
import hashlib
import io
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.unit.data import jpegs, test_decode
from trainyard import native
from trainyard.data import decode
from trainyard.prepare.rewriting import KEPT, REWRITTEN, rewrite, rewriter

pytestmark = pytest.mark.takes(20)
built = test_decode.built
LIBJPEG, WINDOW = 1, 2  # trainyard_ways: who reads the coefficients
MARKERS = re.compile(rb"\xff[\xd0-\xd7]")


def cut(data: bytes, ways: int, *what: Any) -> Tensor:
    """An area as only one of the two ways of reading gives it; the other decoders must not help."""
    library = native.library()
    assert library is not None
    picture = decode.Encoded(data)
    library.trainyard_ways(ways)
    try:
        found = picture.cut(*what)
    finally:
        library.trainyard_ways(0)
    assert picture._pixels is None, "another decoder had to help"
    return found


def compare(data: bytes, other: bytes, generator: random.Random, count: int) -> None:
    """Random areas of `data`, read by libjpeg, against those of `other`, read by segments: bit by bit."""
    height, width = decode.Encoded(data).shape[1:]
    for _ in range(count):
        tall, wide = generator.randint(1, height), generator.randint(1, width)
        area = (generator.randint(0, height - tall), generator.randint(0, width - wide), tall, wide)
        shrink = generator.choice((1, 2, 4, 8))  # so that each scale of decoding occurs
        size = (
            (max(1, tall // shrink), max(1, wide // shrink))
            if generator.random() < 0.5
            else (generator.randint(1, 80), generator.randint(1, 80))
        )
        how, within = generator.choice(("bilinear", "bicubic")), generator.random() < 0.5
        what = (area, *size, how, within)
        assert torch.equal(cut(other, WINDOW, *what), cut(data, LIBJPEG, *what)), what


@pytest.mark.parametrize("sampling", jpegs.SAMPLINGS)
def test_areas_read_by_segments_are_those_of_libjpeg(sampling: str) -> None:
    """8 samplings x 8 sizes x 7 intervals x 26 areas = 11,648, and as many areas of rewritten pictures below."""
    generator = random.Random(sampling)
    for height, width in jpegs.SIZES:
        for interval in (0, 1, 3, 4, 7, 50, 90):
            kind = generator.choice(("b", "o", "e", "b" if sampling.startswith("grey") else "r"))
            data = jpegs.encoded(height, width, sampling, generator.randint(30, 98), interval, kind=kind)
            compare(data, data, generator, 26)


@pytest.mark.parametrize("sampling", jpegs.SAMPLINGS)
def test_rewritten_pictures_have_the_same_pixels(sampling: str) -> None:
    generator = random.Random(sampling)
    for height, width in jpegs.SIZES:
        for kind in ("b", "p", "s", "e", "b" if sampling.startswith("grey") else "r"):
            data = jpegs.encoded(
                height, width, sampling, generator.randint(30, 98), generator.choice((0, 2)), kind=kind
            )
            for interval in (0, generator.randint(1, 9)):
                new, outcome = rewrite(data, interval)
                assert outcome == REWRITTEN
                compare(data, bytes(new), generator, 6)
            with Image.open(io.BytesIO(data)) as before, Image.open(io.BytesIO(new)) as after:
                assert np.array_equal(np.asarray(before), np.asarray(after))
                assert before.getexif() == after.getexif()
                assert before.info.get("exif") == after.info.get("exif")


def test_a_rewritten_picture_is_smaller_and_has_as_many_markers_as_its_size_allows() -> None:
    data = jpegs.encoded(375, 500, quality=95)
    new, outcome = rewrite(memoryview(data))
    assert outcome == REWRITTEN
    assert len(new) < len(data)
    assert len(MARKERS.findall(new)) > 100
    small, _ = rewrite(jpegs.encoded(375, 500, quality=20))  # few bytes: few markers
    assert 20 < len(MARKERS.findall(small)) < len(MARKERS.findall(new))


def test_orientation_and_other_metadata_stay() -> None:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.fromarray(jpegs.pixels(60, 90))
    picture.save(buffer, "JPEG", exif=exif, comment=b"a picture", icc_profile=b"profile" * 20_000, dpi=(72, 72))
    new, outcome = rewrite(buffer.getvalue())
    assert outcome == REWRITTEN
    with Image.open(io.BytesIO(buffer.getvalue())) as before, Image.open(io.BytesIO(new)) as after:
        assert after.getexif()[0x0112] == 6
        for key in ("exif", "comment", "icc_profile", "dpi", "jfif"):
            assert before.info[key] == after.info[key], key


def damaged() -> dict[str, bytes]:
    whole = jpegs.encoded(187, 251, interval=5)
    markers = [found.start() for found in MARKERS.finditer(whole)]
    assert len(markers) > 20
    one, two, other = markers[3], markers[4], markers[9]
    middle = (markers[6] + markers[7]) // 2
    return {
        "a missing marker": whole[:one] + whole[one + 2 :],
        "a missing segment": whole[:one] + whole[two:],
        "eight missing segments": whole[:one] + whole[markers[11] :],
        "a segment twice": whole[:two] + whole[one:],
        "a wrong number": whole[: one + 1] + bytes([whole[one + 1] ^ 1]) + whole[one + 2 :],
        "a marker in a segment": whole[:middle] + b"\xff\xd7" + whole[middle:],
        "an empty segment": whole[: one + 2] + whole[two:],
        "a segment cut short": whole[: other - 6] + whole[other:],
        "bits": whole[:middle] + bytes(byte ^ 0x5A for byte in whole[middle : middle + 5]) + whole[middle + 5 :],
        "a code that no table has": whole[:middle] + b"\xff\x00" * 4 + whole[middle:],
        "filling before a marker": whole[:one] + b"\xff\xff" + whole[one:],
    }


@pytest.mark.parametrize("what", damaged())
def test_damaged_files_give_what_libjpeg_makes_of_them(what: str) -> None:
    data = damaged()[what]
    library = native.library()
    assert library is not None
    for area in ((0, 0, 187, 251), (0, 0, 40, 40), (30, 60, 60, 90), (120, 150, 60, 100)):
        found = []
        for ways in (0, LIBJPEG):
            library.trainyard_ways(ways)
            found.append(decode.Encoded(data).cut(area, 40, 40))
            library.trainyard_ways(0)
        assert torch.equal(*found)
    expected = {KEPT[3], REWRITTEN} if what == "filling before a marker" else {KEPT[3]}
    new, outcome = rewrite(data)
    assert outcome in expected
    assert outcome == REWRITTEN or new is data


@pytest.fixture
def perturb() -> Iterator[Callable[[int], None]]:
    """Let malloc fill new memory with the complement of this byte, and freed memory with the byte; 0: leave both."""

    def fill(byte: int) -> None:
        assert ctypes.CDLL(None).mallopt(-6, byte)  # M_PERTURB in malloc.h

    yield fill
    fill(0)


def without_data(data: bytes, *numbers: int) -> bytes:
    """The same with these segments empty; without numbers, all of them."""
    at = jpegs.behind_header(data)
    segments = re.split(rb"(\xff[\xd0-\xd9])", data[at:])
    for number in numbers or range(len(segments) // 2):
        segments[2 * number] = b""
    return data[:at] + b"".join(segments)


@pytest.mark.parametrize("interval", [0, 1, 5, 90])
def test_where_segments_are_empty_no_pixel_comes_from_memory_that_was_never_written(
    interval: int, perturb: Callable[[int], None]
) -> None:
    sizes = [(1, 1), (8, 8), (256, 256)]
    files = [without_data(jpegs.encoded(*size, interval=interval)) for size in sizes]
    files += [without_data(jpegs.encoded(256, 256, interval=interval), 0), without_data(jpegs.encoded(8, 8), 0)]
    for data in files:
        expected = cut(data, LIBJPEG, (0, 0, *decode.Encoded(data).shape[1:]), 64, 64)
        for byte in (0, 1, 77, 200, 0):
            perturb(byte)
            picture = decode.Encoded(data)
            assert torch.equal(picture.cut((0, 0, *picture.shape[1:]), 64, 64), expected)


def test_what_cannot_be_rewritten_exactly_keeps_its_bytes() -> None:
    plain = jpegs.encoded(90, 131)
    cases = {
        b"": 1, b"no picture": 1, test_decode.encoded(kind="PNG"): 1, plain[:300]: 1,
        test_decode.ARITHMETIC: 2, test_decode.YCCK: 2, jpegs.encoded(90, 131, kind="c"): 2,
        plain[:-1000]: 3, plain[:-2]: 3, jpegs.encoded(90, 131, kind="i"): 3,
        jpegs.too_large_a_coefficient(): 4,
    }  # fmt: skip
    for data, code in cases.items():
        assert rewrite(data) == (data, KEPT[code])


def test_the_bytes_of_a_rewriter_do_not_change_unnoticed() -> None:
    """A change of the written bytes needs another rewriting.VERSION: shards of both must not be mixed."""
    source = jpegs.encoded(90, 131, kind="p")
    digests = {"1 on libjpeg-turbo 2.1.5": "46748b517b824c82"}
    found = hashlib.sha256(rewrite(source)[0]).hexdigest()[:16]
    assert digests.get(rewriter(), found) == found
