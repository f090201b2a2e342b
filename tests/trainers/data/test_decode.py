"""The decoders: the right pixels from every kind of file, the same on every machine, and no harm from broken ones."""

import base64
import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from trainers import native
from trainers.data import decode, transforms
from trainers.exits import UserError

ROOT = Path(__file__).parents[3]
HEIGHT, WIDTH = 187, 251


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """CI has gcc and the headers: a missing decoder is a failure here, not a skip."""
    if native.library() is None:
        subprocess.check_call([sys.executable, ROOT / "trainers/native/build.py", native.cached_path()])
        native.library.cache_clear()
    assert native.library() is not None


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
        for area in areas(40, size):
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


def test_plain_c_gives_the_same_bits_as_vector_instructions() -> None:
    library = native.library()
    assert library is not None
    for how in ("bilinear", "bicubic"):
        for area in areas(60, 7):
            picture = decode.Encoded(KINDS["4:2:0"])
            fast = picture.cut(area, 61, 47, how)
            library.trainyard_plain(1)
            slow = picture.cut(area, 61, 47, how)
            library.trainyard_plain(0)
            assert torch.equal(fast, slow)


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
    return {
        "CMYK": encoded(rgb.convert("CMYK")),
        "YCCK": YCCK,
        "arithmetic coding": ARITHMETIC,
        "PNG": encoded(rgb, "PNG"),
        "PNG with a palette": encoded(rgb.convert("P"), "PNG"),
        "PNG with alpha": encoded(rgb.convert("RGBA"), "PNG"),
        "WebP": encoded(rgb, "WEBP"),
        "GIF": encoded(rgb.convert("P"), "GIF"),
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
    with pytest.raises(UserError, match="a picture cannot be decoded"):
        transforms.resize(decode.choose(name).open(data), 32, 32)


def test_a_header_that_claims_a_huge_picture_costs_no_memory() -> None:
    data = bytearray(KINDS["progressive"])
    at = data.index(b"\xff\xc2") + 5
    data[at : at + 4] = b"\xff\xdc\xff\xdc"
    with pytest.raises(UserError, match="cannot be decoded"):
        decode.choose("native").open(bytes(data))


def test_auto_is_native_and_pillow_is_left_where_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decode.choose("auto").name == "native"
    assert decode.choose("native").description.startswith("native ")
    monkeypatch.setattr(native, "library", lambda: None)
    assert decode.choose("auto").name == "torchvision"
    with pytest.raises(UserError, match=r"data.decoder = 'native': it was not built .* use auto"):
        decode.choose("native")
    monkeypatch.setattr(decode, "decode_image", None)
    assert decode.choose("auto").name == "pillow"
    with pytest.raises(UserError, match=r"data.decoder = 'torchvision'.*use auto or pillow"):
        decode.choose("torchvision")


def test_all_processes_decode_in_the_same_way_or_the_run_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        decode.agree(lambda mine: [mine, mine], "native a1")
    with pytest.raises(UserError, match=r"rank 0 decodes pictures with native a1, rank 2 with torchvision 1"):
        decode.agree(lambda mine: [mine, mine, "torchvision 1"], "native a1")


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
