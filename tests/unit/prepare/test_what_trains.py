"""What passes preparation trains: random archives of sound and broken pictures, and each kind by name."""

import base64
import io
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.data import pngs
from tests.unit.data.test_decode import built, encoded, photo
from tests.unit.data.test_plain import DECODERS, seen
from tests.unit.prepare.make_archives import config, write_zip
from trainyard import config as training
from trainyard.core.exits import UserError
from trainyard.data.splits import open_splits
from trainyard.prepare import rewriting
from trainyard.prepare.build import build
from trainyard.shards.manifest import Manifest
from trainyard.shards.reader import open_split

__all__ = ["built"]
FLIPPED = Image.Transpose.FLIP_LEFT_RIGHT


def sound() -> list[bytes]:
    generator = np.random.Generator(np.random.Philox(key=1))
    rgb = photo(40, 56)
    exif = Image.Exif()
    exif[0x0112] = 6
    made = [encoded(rgb, progressive=progressive, subsampling=sampling, exif=exif)
            for progressive in (False, True) for sampling in (0, 2)]  # fmt: skip
    made += [encoded(rgb.convert(mode)) for mode in ("L", "CMYK")]
    made += [encoded(rgb, kind, save_all=True, append_images=[rgb.transpose(FLIPPED)]) for kind in ("MPO", "PNG")]
    for kind in pngs.KINDS:
        samples = pngs.drawn(generator, 11, 13, kind)
        before = pngs.chunk(b"PLTE", bytes(range(48)) * 16) if kind[0] == pngs.PALETTE else b""
        before = before if kind[1] == 8 else before and pngs.chunk(b"PLTE", bytes(3 * 2 ** kind[1]))
        made.append(pngs.png(samples, kind, bool(generator.integers(2)), before + pngs.text(1_200_000)))
    return made


def damaged(data: bytes, generator: np.random.Generator) -> bytes:
    """Cut short, with some other bytes, with another beginning, or as it is."""
    how = generator.integers(4)
    if how == 0:
        return data[: int(generator.integers(1, len(data)))]
    changed = bytearray(data)
    if how == 1:
        for at in generator.integers(0, len(data), int(generator.integers(1, 6))):
            changed[at] = generator.integers(256)
    if how == 2:
        changed[:8] = (b"GIF89a\0\0", b"RIFF\0\0\0\0", b"\xff\xd8\xff\xe0\0\x10JF", bytes(8))[generator.integers(4)]
    return bytes(changed)


def archive(path: Path, members: dict[str, bytes]) -> Path:
    """Members of train, beside two sound pictures of each split."""
    rest = {f"{split}/a/sound{i}.jpg": encoded(photo(20 + i, 30)) for i in range(2) for split in ("train", "val")}
    return write_zip(path, {**{f"train/a/{name}": content for name, content in members.items()}, **rest})


def built_from(path: Path, out: Path, **settings: object) -> Manifest | None:
    return build(config(path, out, layout="imagefolder", **{"seekable": True, **settings}))


def trained_on(root: Path) -> Iterator[bytes]:
    shards = open_split(root, "train")
    yield from shards.read_many(np.arange(len(shards)))


def decodes(data: bytes, name: str) -> bool:
    try:
        return seen(name, data).size > 0
    except UserError:
        return False


def epoch(root: Path, decoder: str) -> int:
    """How many samples training's loader gives in an epoch of the training split."""
    data = {"dir": str(root), "decoder": decoder, "image_size": 16, "val_resize": 18, "workers": 2}
    settings = training.build({"recipe": "demo"}, {"data": data, "model": {"num_classes": 1}})
    split = open_splits(settings.data, settings.augment, settings.model, settings.seed, local_world=1, pin=False).train
    batches = np.array_split(np.random.default_rng(0).permutation(len(split.labels)), 7)
    return sum(len(batch.labels) for batch in split.batches((0, ids) for ids in batches))


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_every_sample_of_a_random_archive_decodes_with_every_decoder(tmp_path: Path) -> None:
    """Though nothing is to be decoded as a check."""
    generator = np.random.Generator(np.random.Philox(key=11))
    pictures = sound()
    members = {f"{i:03}.jpg": damaged(pictures[i % len(pictures)], generator) for i in range(300)}
    path = archive(tmp_path / "a.zip", members)
    with pytest.raises(UserError, match=r"\d\d images of .* cannot be decoded"):
        built_from(path, tmp_path / "fails", decode="none")
    # Past the check of settings, which wants all to be decoded
    chosen = config(path, tmp_path / "out", layout="imagefolder", seekable=True, decode="none")
    manifest = build(chosen.model_copy(update={"undecodable": "leave_out"}))
    assert manifest is not None
    kept = list(trained_on(tmp_path / "out"))
    assert len(kept) + len(manifest.left_out) == len(members) + 2
    assert len(kept) > 90 < len(manifest.left_out)
    for data in kept:
        assert all(decodes(data, name) for name in DECODERS), data.hex()
    for name in DECODERS:
        assert epoch(tmp_path / "out", name) == len(kept)
    left_out = [members[name.rpartition("/")[2]] for name in manifest.left_out]
    assert not any(decodes(data, "pillow") for data in left_out)  # nothing sound is lost


@pytest.mark.parametrize("decoded", ["sampled", "none"])
def test_a_truncated_picture_is_named_by_default(decoded: str, tmp_path: Path) -> None:
    whole = encoded(photo(300, 400))
    members = {"cut.jpg": whole[: len(whole) * 2 // 3], "cut.png": encoded(photo(20, 20), "PNG")[:-200]}
    with pytest.raises(UserError, match=r"2 images .* train/a/cut.jpg \(OSError.*; train/a/cut.png \("):
        built_from(archive(tmp_path / "a.zip", members), tmp_path / "out", decode=decoded)


def test_a_truncated_jpeg_is_named_by_default_where_none_is_rewritten_too(tmp_path: Path) -> None:
    whole = encoded(photo(300, 400))
    members = {"cut.jpg": whole[: len(whole) * 2 // 3], "longer.jpg": encoded(photo(40, 56)) + b"more"}
    with pytest.raises(UserError, match=r"1 images .* train/a/cut.jpg \(OSError"):
        built_from(archive(tmp_path / "a.zip", members), tmp_path / "out", seekable=False)


@pytest.mark.parametrize("decoded", ["sampled", "none"])
def test_a_jpeg_whose_header_training_refuses_is_named_where_none_is_rewritten_too(
    decoded: str, tmp_path: Path
) -> None:
    whole, grey = encoded(photo(40, 56)), encoded(photo(40, 56).convert("L"))
    frame = whole.index(b"\xff\xc0")
    assert frame > 0 < grey.index(b"\xff\xc0")
    many = encoded(photo(40, 56), progressive=True)
    scan = many[many.rindex(b"\xff\xda") : -2]
    members = {
        "huge.jpg": whole[: frame + 5] + struct.pack(">HH", 20_000, 20_000) + whole[frame + 9 :],
        "deep.jpg": whole[: frame + 4] + b"\x0c" + whole[frame + 5 :],
        "lossless.jpg": whole[: frame + 1] + b"\xc3" + whole[frame + 2 :],
        "scans.jpg": many[:-2] + scan * 600 + many[-2:],
    }
    sound = {"grey.jpg": grey, "cmyk.jpg": encoded(photo(40, 56).convert("CMYK")), "many.jpg": many}
    path = archive(tmp_path / "a.zip", members | sound)
    with pytest.raises(UserError, match=r"4 images .* cannot be decoded") as caught:
        built_from(path, tmp_path / "out", seekable=False, decode=decoded)
    assert all(f"train/a/{name} (" in str(caught.value) for name in members)
    built_from(path, tmp_path / "out", seekable=False, decode=decoded, skip=[f"train/a/{name}" for name in members])
    for data in trained_on(tmp_path / "out"):
        assert all(decodes(data, name) for name in DECODERS)


def test_pngs_with_large_texts_and_of_16_bits_and_jpegs_with_odd_exif_train(tmp_path: Path) -> None:
    entry = b"\x12\x01\x03\x00\xff\xff\xff\xff" * 10
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + entry
    jpeg = encoded(photo(40, 56))
    odd = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]
    ramp = np.linspace(0, 65535, 48).astype(np.int64)[None, :, None].repeat(48, axis=0)
    members = {
        "text.png": pngs.png(ramp >> 8, (pngs.GREY, 8), before=pngs.text(2_400_000)),
        "ramp.png": pngs.png(ramp, (pngs.GREY, 16), interlaced=True),
        "exif.jpg": odd,
    }
    built_from(archive(tmp_path / "a.zip", members), tmp_path / "out")
    kept = set(trained_on(tmp_path / "out"))
    assert {members["text.png"], members["ramp.png"], rewriting.rewrite(odd)[0]} < kept
    for name in DECODERS:
        for picture in ("text.png", "ramp.png"):
            assert np.array_equal(seen(name, members[picture])[..., 1], (ramp >> 8)[..., 0])


def test_reencoded_pictures_of_16_bits_are_not_white(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64).astype(np.int64)[None, :, None].repeat(64, axis=0)
    members = {"ramp.png": pngs.png(ramp, (pngs.GREY, 16))}
    built_from(archive(tmp_path / "a.zip", members), tmp_path / "out", reencode={"resize": 32})
    rows = [seen("pillow", data)[9, :, 0].astype(int) for data in trained_on(tmp_path / "out")]
    wanted = (ramp[0, ::2, 0] + ramp[0, 1::2, 0]) // 2 >> 8
    assert min(np.abs(row - wanted).max() for row in rows if row.shape == wanted.shape) < 6


# Found by a fuzzer: chroma is sampled by a fraction, so that its coefficients are sound and nobody decodes it
FRACTIONAL = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgy"
    "PC4zNDL/2wBDAQkJCQwLDBgNDRgyIRwhMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjL/wAARCAAhACgD"
    "AREAAjEBAyIB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKB"
    "kaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZ"
    "mqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/8QAHwEAAwEBAQEBAQEBAQAAAAAAAAECAwQF"
    "BgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAECAxEEBSExBhJBUQdhcRMiMoEIFEKRobHBCSMzUvAVYnLRChYkNOEl8RcYGRomJygpKjU2Nzg5"
    "OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6goOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX"
    "2Nna4uPk5ebn6Onq8vP09fb3+Pn6/9oADAMBAAIRAxEAPwB9eWfmYUAFABQAUAFABQAUAFABQAUAFABQAUAFABQAUAFABQAUAFABQAUAFABQB//Z"
)


def test_coefficients_without_pixels_are_not_rewritten(tmp_path: Path) -> None:
    assert rewriting.rewrite(FRACTIONAL) == (FRACTIONAL, rewriting.KEPT[2])
    with pytest.raises(UserError, match=r"1 images .*fractional.jpg \(OSError: broken data stream"):
        built_from(archive(tmp_path / "a.zip", {"fractional.jpg": FRACTIONAL}), tmp_path / "out")


FORMATS = {
    "lossless.webp": ("WEBP", {"lossless": True}),
    "lossy.webp": ("WEBP", {"quality": 60}),
    "still.gif": ("GIF", {}),
    "moving.gif": ("GIF", {"save_all": True, "append_images": [photo(40, 56).transpose(FLIPPED)]}),
    "moving.webp": ("WEBP", {"save_all": True, "append_images": [photo(40, 56).transpose(FLIPPED)], "lossless": True}),
    "clear.gif": ("GIF", {"transparency": 3}),
    "plain.bmp": ("BMP", {}),
    "plain.tiff": ("TIFF", {"compression": "tiff_lzw"}),
}


def test_other_formats_are_stored_as_png_on_request_and_else_refused_with_the_key(tmp_path: Path) -> None:
    """By content, whatever they are called."""
    members, wanted = {}, set()
    for name, (kind, options) in FORMATS.items():
        buffer = io.BytesIO()
        photo(40, 56).save(buffer, kind, **options)
        members[f"{name}.jpg"] = buffer.getvalue()
        with Image.open(io.BytesIO(buffer.getvalue())) as picture:
            wanted.add(picture.convert("RGB").tobytes())
    path = archive(tmp_path / "a.zip", members)
    with pytest.raises(UserError, match=r"8 images .*plain.bmp.jpg .*convert it \(convert: 'png' does that with a BMP"):
        built_from(path, tmp_path / "no", decode="none")
    built_from(path, tmp_path / "out", convert="png")
    kept = [data for data in trained_on(tmp_path / "out") if data[:4] == b"\x89PNG"]
    assert len(kept) == len(FORMATS)
    for name in DECODERS:
        assert {seen(name, data).tobytes() for data in kept} == wanted
    named = archive(tmp_path / "named.zip", {name.removesuffix(".jpg"): data for name, data in members.items()})
    with pytest.raises(UserError, match=r"neither JPEG nor PNG: .*convert: 'png' makes PNGs of "):
        built_from(named, tmp_path / "no", decode="none")
    built_from(named, tmp_path / "named", convert="png")
    assert sorted(trained_on(tmp_path / "named")) == sorted(trained_on(tmp_path / "out"))
    built_from(path, tmp_path / "small", convert="png", reencode={"resize": 32})
    assert {data[:2] for data in trained_on(tmp_path / "small")} == {b"\xff\xd8"}


def tiff(values: np.ndarray, **tags: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "TIFF", **tags)
    return buffer.getvalue()


def test_greys_of_a_tiff_are_those_of_a_png_and_floats_are_refused(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 48).astype(np.uint16)[None].repeat(48, axis=0)
    high = (ramp >> 8).astype(np.uint8)
    members = {"16.jpg": tiff(ramp), "8.jpg": tiff(high), "inverse.jpg": tiff(ramp, tiffinfo={262: 0})}
    built_from(archive(tmp_path / "a.zip", members), tmp_path / "out", convert="png")
    kept = [data for data in trained_on(tmp_path / "out") if data[:4] == b"\x89PNG"]
    rows = sorted(tuple(seen("native", data)[0, :, 0]) for data in kept)
    assert rows == sorted([tuple(high[0]), tuple(high[0]), tuple(255 - high[0])])
    broken = {"float.jpg": tiff(ramp.astype(np.float32)), "int.jpg": tiff(ramp.astype(np.int32))}
    with pytest.raises(UserError, match=r"2 images .*float.jpg .*no value is known to be white.*int.jpg"):
        built_from(archive(tmp_path / "b.zip", broken), tmp_path / "no", convert="png")


def tiff_of(*kinds: int, behind: bytes = bytes(8), last: int = 0, more: tuple[int, ...] = ()) -> bytes:
    """A TIFF with a page of 8 x 8 grey pixels for each kind (NewSubfileType), and what its last page says is next."""
    found = b"II*\0" + struct.pack("<I", 16) + behind
    for number, kind in enumerate(kinds):
        numbers = {254: kind, 256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 0, 277: 1, 278: 8, 279: 64}
        numbers |= dict.fromkeys(more, 1)
        end = len(found) + 2 + 12 * len(numbers) + 4
        numbers[273] = end
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(numbers.items()))
        following = end + 64 if number + 1 < len(kinds) else last
        found += struct.pack("<H", len(numbers)) + entries + struct.pack("<I", following) + bytes([40 + number]) * 64
    return found


def test_pages_of_a_tiff_are_not_lost_and_previews_are_not_taken_for_images(tmp_path: Path) -> None:
    """NewSubfileType: 1 is a smaller copy, 4 a mask. A camera's raw image is a TIFF that begins with a preview."""
    broken = {"stack.tif": tiff_of(0, 0), "many.tif": tiff_of(0, *[1] * 120), "nikon.tif": tiff_of(1),
              "adobe.tif": tiff_of(0, more=(50706,)), "canon.tif": tiff_of(0, behind=b"CR\2\0\0\0\0\0")}  # fmt: skip
    with pytest.raises(UserError, match=r"5 images .*") as caught:
        built_from(archive(tmp_path / "a.zip", broken), tmp_path / "no", convert="png")
    for name in ("nikon", "adobe", "canon"):
        assert f"{name}.tif (ValueError: it is a camera's raw image" in str(caught.value)
    for name in ("stack", "many"):
        assert f"{name}.tif (ValueError: it has several pages, of which training would see the first" in str(
            caught.value
        )
    sound = {"one.tif": tiff_of(0), "pyramid.tif": tiff_of(0, 1, 4, 5), "next.tif": tiff_of(0, last=7),
             "again.tif": tiff_of(0, last=16)}  # fmt: skip
    built_from(archive(tmp_path / "b.zip", sound), tmp_path / "out", convert="png")
    kept = [data for data in trained_on(tmp_path / "out") if data[:4] == b"\x89PNG"]
    assert [set(seen("pillow", data).flat) for data in kept] == [{40}] * 4


def test_a_bomb_in_another_format_is_not_unpacked(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(buffer, "TIFF", compression="group4")
    path = archive(tmp_path / "a.zip", {"bomb.jpg": buffer.getvalue()})
    with pytest.raises(UserError, match=r"bomb.jpg.*12,000 x 12,000 pixels"):
        built_from(path, tmp_path / "out", convert="png")
