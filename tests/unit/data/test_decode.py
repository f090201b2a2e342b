"""The decoders: the right pixels from every kind of file, the same on every machine, and no harm from broken ones."""

import base64
import io
import logging
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from tests.crowd import Crowd
from trainyard import native
from trainyard.core.exits import UserError
from trainyard.data import decode, limits, transforms

ROOT = Path(__file__).parents[3]
HEIGHT, WIDTH = 187, 251


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """CI has gcc and the headers: a missing decoder is a failure here, not a skip."""
    if native.library() is None:
        subprocess.check_call([sys.executable, ROOT / "src/trainyard/native/compile.py", native.cached_path()])
        native.library.cache_clear()
    assert native.library() is not None


def test_checksums_are_those_of_zlib_at_any_length_and_place() -> None:
    library = native.library()
    assert library is not None
    content = np.random.Generator(np.random.Philox(key=5)).bytes(70_000)
    lengths = [*range(200), 4095, 65_537]
    for start in range(3):
        parts = [content[start : start + length] for length in lengths]
        assert [native.crc32(part) for part in parts] == [zlib.crc32(part) for part in parts]
        assert [library.trainyard_crc32(part, len(part)) for part in parts] == [zlib.crc32(part) for part in parts]


def photo(height: int = HEIGHT, width: int = WIDTH) -> Image.Image:
    """Smooth colours, edges and a little noise, as photos have."""
    generator = np.random.Generator(np.random.Philox(key=[height, width]))
    coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    pixels[height // 3 : height // 2, width // 4 :] //= 3
    return Image.fromarray((pixels + generator.integers(-8, 9, pixels.shape)).clip(0, 255).astype(np.uint8))


def encoded(picture: Image.Image | None = None, kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    (picture or photo()).save(buffer, kind, **{"quality": 92, **options})
    return buffer.getvalue()


def areas(count: int, seed: int) -> Iterator[tuple[int, int, int, int]]:
    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    for _ in range(count):
        height, width = int(generator.integers(1, HEIGHT + 1)), int(generator.integers(1, WIDTH + 1))
        yield (int(generator.integers(0, HEIGHT - height + 1)), int(generator.integers(0, WIDTH - width + 1)),
               height, width)  # fmt: skip


def exact(pixels: Tensor, area: tuple[int, int, int, int], size: int, how: str) -> Tensor:
    """torch's resize of the area in floating point."""
    top, left, height, width = area
    batch = pixels[None, :, top : top + height, left : left + width].double()
    return functional.interpolate(batch, size=(size, size), mode=how, antialias=True)[0].clamp(0, 255)


KINDS = {
    "4:4:4": encoded(subsampling=0),
    "4:2:2": encoded(subsampling=1),
    "4:2:0": encoded(subsampling=2),
    "progressive": encoded(progressive=True),
    "progressive 4:2:0": encoded(progressive=True, subsampling=2),
    "restart markers": encoded(restart_marker_blocks=3),
    "grey": encoded(photo().convert("L")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_area_is_bit_equal_to_the_same_area_of_the_whole_picture(kind: str) -> None:
    whole = decode.choose("torchvision").open(KINDS[kind])
    picture = decode.choose("native").open(KINDS[kind])
    assert picture.shape == tuple(whole.shape) == (3, HEIGHT, WIDTH)
    for top, left, height, width in areas(150, 1):
        found = transforms.cut(picture, (top, left, height, width), height, width)
        assert torch.equal(found, whole[:, top : top + height, left : left + width]), (top, left, height, width)


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("kind", KINDS)
def test_resizing_is_exact_to_rounding_and_scaled_decoding_near(kind: str, how: decode.Filter) -> None:
    whole = decode.choose("torchvision").open(KINDS[kind])
    scaled = []
    for size in (24, 60, 130):
        for area in areas(25, size):
            wanted = exact(whole, area, size, how)
            unscaled = decode.Encoded(pixels=whole).cut(area, size, size, how)
            assert float((unscaled - wanted).abs().max()) < 0.53
            found = transforms.cut(decode.choose("native").open(KINDS[kind]), area, size, size, how)
            if min(area[2:]) >= 2 * size:
                scaled.append(float((found - wanted).abs().mean()))
            else:
                assert torch.equal(found, unscaled)
    assert len(scaled) > 20
    assert np.mean(scaled) < 3.0  # on photos it is about 0.8, of 255


def test_validation_cuts_the_same_centre_as_resizing_everything() -> None:
    whole = decode.choose("torchvision").open(KINDS["4:4:4"])
    assert isinstance(whole, Tensor)
    for size, shorter in ((112, 128), (100, 100), (40, 50), (200, 240)):  # down and up
        found = transforms.centre(decode.Encoded(pixels=whole), size, shorter)
        wanted = transforms.centre(whole.double(), size, shorter)
        assert float((found - wanted).abs().max()) < 0.53
    found = transforms.centre(decode.choose("native").open(KINDS["4:4:4"]), 112, 128)
    assert float((found - transforms.centre(whole.double(), 112, 128)).abs().max()) < 0.53


VECTORS = (0, 256, 512)  # bits; a machine without the longer ones takes the shorter ones


@pytest.fixture
def vectors() -> Iterator[Callable[[int], None]]:
    """Limit the width of the vector instructions that the native decoder uses."""
    library = native.library()
    assert library is not None
    yield library.trainyard_vectors
    library.trainyard_vectors(max(VECTORS))


def test_plain_c_gives_the_same_bits_as_vector_instructions(vectors: Callable[[int], None]) -> None:
    for how in ("bilinear", "bicubic"):
        for number, area in enumerate(areas(60, 7)):
            picture, size = decode.Encoded(KINDS["4:2:0"]), (61 + number % 5, 47 - number % 5)
            found = []
            for bits in VECTORS:
                vectors(bits)
                found.append(picture.cut(area, *size, how))
            assert torch.equal(found[0], found[1])
            assert torch.equal(found[0], found[2])


# 40 x 32 pixels each, of kinds that Pillow cannot write
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQ"
    "YEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//yQARCAAgACgD"
    "ASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AK+YPQxSOVvLHDt8KJr6CGBJscviBr/m0Pg9DPtm/rMXqwc24lU5tRWtHAvp/ka2"
    "Vd8aEYeBIZa8hDo0lGa9G61WKb+G+naPT3SR/9k="
)
YCCK = base64.b64decode(
    "/9j/7gAOQWRvYmUAZAAAAAAC/9sAQwANCQoLCggNCwoLDg4NDxMgFRMSEhMnHB4XIC4pMTAuKS0sMzpKPjM2RjcsLUBXQUZMTlJTUjI+WmFaUGBK"
    "UVJP/9sAQwEODg4TERMmFRUmTzUtNU9PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09P/8AAFAgAIAAoBAEi"
    "AAIRAQMRAQQiAP/EABgAAQEBAQEAAAAAAAAAAAAAAAAEBQYH/8QAFxABAAMAAAAAAAAAAAAAAAAAAAMEYf/EABgBAAMBAQAAAAAAAAAAAAAAAAID"
    "BQEH/8QAGREAAgMBAAAAAAAAAAAAAAAAAAIBAwQh/9oADgQBAAIRAxEEAAA/APQJLGpJLGpJLGpZLGtlQr851gCuSxqSSxqSSxqWSxpcqRr84AVy"
    "WNGTJY0LlSS+foAakljUsljUcljUsljVCVOmX5wArksalksajksalksaVKka/OAFcljRkyWNASpJfP0AP//Z"
)


def odd_files() -> dict[str, bytes]:
    rgb = photo()
    more = {"save_all": True, "append_images": [rgb.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]}
    return {
        "CMYK": encoded(rgb.convert("CMYK")),
        "YCCK": YCCK,
        "arithmetic coding": ARITHMETIC,
        "PNG": encoded(rgb, "PNG"),
        "PNG with a palette": encoded(rgb.convert("P"), "PNG"),
        "PNG with alpha": encoded(rgb.convert("RGBA"), "PNG"),
        "two photos of a telephone": encoded(rgb, "MPO", **more),
        "animated PNG": encoded(rgb, "PNG", **more),
        "one pixel": encoded(photo(1, 1)),
        "a line": encoded(photo(1, 300)),
    }


@pytest.mark.parametrize("kind", odd_files())
def test_what_the_native_decoder_does_not_take_comes_out_right_all_the_same(kind: str) -> None:
    data = odd_files()[kind]
    with Image.open(io.BytesIO(data)) as opened:
        wanted = torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)
    for name in ("native", "torchvision", "pillow"):
        picture = decode.choose(name).open(data)
        assert picture.shape == tuple(wanted.shape)
        found = transforms.resize(picture, *wanted.shape[1:])
        assert float((found.int() - wanted.int()).abs().float().mean()) < 1.0, name


@pytest.mark.parametrize("data", [b"", b"no picture", KINDS["4:2:0"][:40], KINDS["4:2:0"][:-2000],
                                  KINDS["progressive"][:-2000]])  # fmt: skip
@pytest.mark.parametrize("name", ["native", "torchvision", "pillow"])
def test_what_nobody_can_decode_is_an_error_in_words(data: bytes, name: str) -> None:
    with pytest.raises(UserError, match="an image cannot be decoded"):
        transforms.resize(decode.choose(name).open(data), 32, 32)


def claiming(height: int, width: int, data: bytes = KINDS["progressive"]) -> bytes:
    """The picture with another size in its header."""
    at = data.index(b"\xff\xc2") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


DECODERS = ("native", "torchvision", "pillow")


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(("height", "width"), [(0xFFDC, 0xFFDC), (12_801, 10_000)])
def test_a_header_that_claims_a_huge_picture_costs_no_memory(name: str, height: int, width: int) -> None:
    claimed = f"it claims {width:,} x {height:,} pixels; 128,000,000"
    words = "Image size .* exceeds limit" if height == 0xFFDC else claimed  # Pillow's own limit comes first there
    with pytest.raises(UserError, match=f"cannot be decoded .{words}"):
        transforms.resize(decode.choose(name).open(claiming(height, width)), 32, 32)


def many_scans(count: int) -> bytes:
    """A progressive JPEG whose second scan comes `count` times more."""
    data = KINDS["progressive"]
    first = data.index(b"\xff\xda")
    begin = data.index(b"\xff\xda", first + 2)
    match = re.compile(rb"\xff[^\x00]").search(data, begin + 2)
    assert match
    end = match.start()
    return data[:end] + data[begin:end] * count + data[end:]


@pytest.mark.parametrize("name", DECODERS)
def test_no_decoder_works_through_scans_without_end(name: str) -> None:
    fine, endless = many_scans(100), many_scans(500)
    assert transforms.resize(decode.choose(name).open(fine), 32, 32).shape == (3, 32, 32)
    for size in ((HEIGHT, WIDTH), (11_000, 11_000)):
        scans, most = (510, 500) if size[0] == HEIGHT else (110, 16)
        data = claiming(*size, data=endless if size[0] == HEIGHT else fine)
        words = rf"cannot be decoded \(it has {scans} scans; an image of its size may have {most}\)"
        with pytest.raises(UserError, match=words):
            transforms.resize(decode.choose(name).open(data), 32, 32)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", ["WEBP", "GIF", "TIFF", "BMP", "PPM", "ICO"])
def test_no_other_format_reaches_a_decoder(name: str, kind: str) -> None:
    with pytest.raises(UserError, match="it is neither a JPEG nor a PNG"):
        decode.choose(name).open(encoded(kind=kind))


def test_large_pictures_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more pixels are held decoded than the budget has, however many threads decode."""
    whole = decode._whole
    for name, data in (("native", odd_files()["CMYK"]), ("torchvision", KINDS["grey"])):
        crowd = Crowd(HEIGHT * WIDTH)

        def counted(data: bytes, crowd: Crowd = crowd) -> Tensor:
            with crowd.holding():
                return whole(data)

        monkeypatch.setattr(decode, "_whole", counted)
        monkeypatch.setattr(limits, "pixels", crowd)
        with ThreadPoolExecutor(8) as pool:
            opened = pool.map(decode.choose(name).open, [data] * 24)
            done = list(pool.map(lambda picture: transforms.resize(picture, 32, 32), opened))
        assert len(done) == 24
        assert crowd.most == 2 * HEIGHT * WIDTH, name


def test_a_progressive_picture_counts_since_all_of_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    class Counted(limits.Budget):
        def taking(self, amount: int) -> AbstractContextManager[None]:
            taken.append(amount)
            return super().taking(amount)

    monkeypatch.setattr(limits, "pixels", Counted(limits.LARGEST_PIXELS))
    for kind, held in (("4:2:0", 0), ("progressive", HEIGHT * WIDTH)):
        taken.clear()
        transforms.resize(decode.choose("native").open(KINDS[kind]), 32, 32)
        assert sum(taken) == held


def test_native_code_and_python_have_the_same_limits() -> None:
    source = (native.HERE / "jpeg.c").read_text()
    assert f"#define MAX_PIXELS {limits.LARGEST_PIXELS}ull" in source
    assert f"#define MAX_SCANS {limits.MOST_SCANS} " in source
    assert f"#define MAX_WORK {limits.MOST_WORK}ull" in source


def test_enlarging_reads_all_columns_that_any_output_needs(vectors: Callable[[int], None]) -> None:
    """The last output of a cubic filter, right on a pixel, does not read the next one; outputs before it do."""
    high, size = 10, 64
    wide = (high - 1.5) / (1 - 1 / (2 * size))  # the last output's centre is that of the last pixel but one
    pixels = torch.full((3, high, high), 100, dtype=torch.uint8)
    pixels[:, :, -1] = 255  # darkens the outputs around it, since a cubic filter's outer weights are negative
    for bits in VECTORS:
        vectors(bits)
        picture = decode.Encoded(pixels=pixels)
        all_of_them = picture.cut((0, 0, high, wide), size, size, "bicubic", within=False)
        without_last = picture.cut((0, 0, high, wide * (size - 1) / size), size, size - 1, "bicubic", within=False)
        assert without_last.min() < 100
        assert torch.equal(all_of_them[:, :, :-1], without_last)


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
def test_no_area_however_far_outside_changes_a_plain_picture(
    how: decode.Filter, vectors: Callable[[int], None]
) -> None:
    """Where only the filter's negative ends lie inside, weights that sum to 1 would be of any size."""
    generator = np.random.Generator(np.random.Philox(key=[6, 6]))
    for _ in range(500):
        height, width, size = (int(n) for n in generator.integers(1, 40, 3))
        picture = decode.Encoded(pixels=torch.full((3, height, width), 100, dtype=torch.uint8))
        top, left = (float(generator.uniform(-2, 2) * extent) for extent in (height, width))
        tall, wide = (float(generator.uniform(0.01, 3) * extent) for extent in (height, width))
        for bits in VECTORS:
            vectors(bits)
            found = picture.cut((top, left, tall, wide), size, size, how, within=False)
            assert bool((found == 100).all()), (height, width, size, top, left, tall, wide)


def test_no_area_however_far_outside_overflows_a_sum(vectors: Callable[[int], None]) -> None:
    """Where the filter's positive middle and its negative ends cancel, weights that sum to 1 would be large."""
    generator = np.random.Generator(np.random.Philox(key=[6, 7]))
    pixels = torch.zeros(3, 300, 300, dtype=torch.uint8)
    pixels[:, 100:200, 100:200] = 255
    for _ in range(300):
        tall, wide = (float(generator.uniform(200, 3000)) for _ in range(2))
        area = (float(generator.uniform(-2, 0.5) * tall), float(generator.uniform(-2, 0.5) * wide), tall, wide)
        found = []
        for bits in VECTORS:
            vectors(bits)
            found.append(decode.Encoded(pixels=pixels).cut(area, 3, 3, "bicubic", within=False))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


def test_auto_is_native_and_pillow_is_left_where_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decode.choose("auto").name == "native"
    assert decode.choose("native").description.startswith("native ")
    monkeypatch.setattr(native, "library", lambda: None)
    assert decode.choose("auto").name == "torchvision"
    with pytest.raises(UserError, match=r"data.decoder = 'native': it was not built .* use auto"):
        decode.choose("native")
    monkeypatch.setattr(decode, "torchvisions", lambda: None)
    assert decode.choose("auto").name == "pillow"
    with pytest.raises(UserError, match=r"data.decoder = 'torchvision'.*use auto or pillow"):
        decode.choose("torchvision")


def test_all_processes_decode_in_the_same_way_or_the_run_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        decode.agree(lambda mine: [mine, mine], "native a1")
    with pytest.raises(UserError, match=r"rank 0 decodes images with native a1, rank 2 with torchvision 1"):
        decode.agree(lambda mine: [mine, mine, "torchvision 1"], "native a1")


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
def test_of_a_long_strip_only_the_middle_is_resized(how: decode.Filter) -> None:
    """Its centre is the same as when it is cut before."""
    strip = torch.from_numpy(np.random.Generator(np.random.Philox(key=5)).integers(0, 256, (3, 2, 60_000), np.uint8))
    for picture in (strip, strip.transpose(1, 2)):
        found = transforms.centre(picture, 24, 32, how)
        assert found.shape == (3, 24, 24)
        assert found.untyped_storage().nbytes() < 100_000
        shorter = picture[:, 29_800:30_200] if picture.shape[1] > 2 else picture[..., 29_800:30_200]
        assert torch.equal(found, transforms.centre(shorter, 24, 32, how))
        native = transforms.centre(decode.Encoded(pixels=picture), 24, 32, how)
        assert float((found.float() - native.float()).abs().mean()) < 0.6  # of 255, on noise


def test_validation_picture_is_the_centre() -> None:
    picture = torch.zeros(3, 40, 60, dtype=torch.uint8)
    picture[:, 10:30, 20:40] = 255
    assert bool((transforms.centre(picture, 20, 40) == 255).all())
    assert transforms.centre(picture, 20, 21).shape == (3, 20, 20)


def test_unusual_jpegs_are_decoded() -> None:
    from io import BytesIO

    from PIL import Image

    for mode in ("L", "CMYK", "RGB"):
        buffer = BytesIO()
        Image.new(mode, (9, 7), 100 if mode == "L" else (100, 20, 30, 0)[: len(mode)]).save(buffer, "JPEG")
        for name in ("auto", "torchvision", "pillow"):
            assert decode.choose(name).open(buffer.getvalue()).shape == (3, 7, 9)
