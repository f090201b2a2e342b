import io
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from tests.crowd import Crowd
from tests.unit.prepare.make_archives import DATA, SYNSETS, config, contents, imagenet, picture, pictures, write_zip
from trainyard.core.exits import ExitError, UserError
from trainyard.data import limits
from trainyard.prepare import build as building
from trainyard.prepare import decoding as handling
from trainyard.prepare.build import build
from trainyard.prepare.settings import Reencode, parse
from trainyard.prepare.verify import repair, verify
from trainyard.shards.reader import open_split

FOLDER = f"{DATA}/train/{SYNSETS[0]}"


def encoded(width: int, height: int, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """A smooth picture whose colours say where they are."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    pixels = np.stack([x, y, 255 - x], -1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return buffer.getvalue()


def opened(content: bytes | memoryview) -> Image.Image:
    return Image.open(io.BytesIO(content))


ODD = {
    f"{FOLDER}/large.JPEG": encoded(400, 200),
    f"{FOLDER}/tall.JPEG": encoded(120, 480),
    f"{FOLDER}/small.JPEG": encoded(64, 64),
    f"{FOLDER}/cmyk.JPEG": encoded(80, 60, mode="CMYK"),
    f"{FOLDER}/grey.JPEG": encoded(300, 300, mode="L"),
    f"{FOLDER}/png.JPEG": encoded(90, 90, "PNG"),
    f"{FOLDER}/alpha.JPEG": encoded(200, 100, "PNG", "RGBA"),
}
SETTINGS = {"reencode": {"resize": 100, "quality": 90}}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return write_zip(tmp_path_factory.mktemp("odd") / "a.zip", {**imagenet(300, 30), **ODD})


@pytest.fixture(scope="module")
def reencoded(archive, tmp_path_factory):
    out = tmp_path_factory.mktemp("reencoded") / "little"
    build(config(archive, out, **SETTINGS))
    return out


def test_oddities_are_decoded_and_kept_as_they_are_by_default(archive, tmp_path):
    build(config(archive, tmp_path / "out", decode="all"))
    assert set(ODD.values()) <= pictures(tmp_path / "out", "train").keys()


@pytest.mark.parametrize(
    ("name", "size", "mode"),
    [
        ("large", (200, 100), "RGB"),
        ("tall", (100, 400), "RGB"),
        ("cmyk", (80, 60), "RGB"),
        ("grey", (100, 100), "L"),
        ("png", (90, 90), "RGB"),
        ("alpha", (200, 100), "RGB"),
    ],
)
def test_what_becomes_of_each_picture(name, size, mode):
    content = ODD[f"{FOLDER}/{name}.JPEG"]
    result = opened(handling.reencode(memoryview(content), Reencode(resize=100)))
    assert (result.format, result.size, result.mode) == ("JPEG", size, mode)
    wanted = np.asarray(opened(content).convert(mode).resize(size), int)
    assert np.abs(np.asarray(result, int) - wanted).mean() < 6


def test_what_is_small_already_keeps_its_bytes():
    small = ODD[f"{FOLDER}/small.JPEG"]
    for resize in (64, 65, 500):
        assert handling.reencode(memoryview(small), Reencode(resize=resize)) == small
    assert handling.reencode(memoryview(small), Reencode(resize=63)) != small


def test_the_shards_hold_the_small_pictures_and_the_manifest_says_how(reencoded, archive, tmp_path):
    found = pictures(reencoded, "train")
    assert len(found) == 307
    assert max(min(opened(content).size) for content in found) == 100
    assert {opened(content).format for content in found} == {"JPEG"}
    assert picture(5) in found
    settings = json.loads((reencoded / "manifest.json").read_text())["settings"]
    assert settings["reencode"] == {"resize": 100, "quality": 90}
    assert settings["encoder"].startswith("Pillow ")
    verify(reencoded)
    with pytest.raises(UserError, match=r"reencode was .*100.* and is None"):
        build(config(archive, reencoded))


def test_the_same_bytes_whatever_the_parallelism_and_after_a_stop(reencoded, archive, tmp_path, monkeypatch):
    build(config(archive, tmp_path / "one/little", workers=1, **SETTINGS))
    assert contents(tmp_path / "one/little") == contents(reencoded)
    out, real, calls = tmp_path / "little", handling.reencode, []

    def failing(content, settings):
        calls.append(1)
        if len(calls) == 250:
            raise ExitError("enough", 1)
        return real(content, settings)

    monkeypatch.setattr(handling, "reencode", failing)
    with pytest.raises(ExitError):
        build(config(archive, out, workers=1, **SETTINGS))
    assert list(out.rglob("*.tar"))
    build(config(archive, out, **SETTINGS))
    assert contents(out) == contents(reencoded)
    assert len(calls) < 250 + 337


def test_a_damaged_shard_is_encoded_again_but_not_by_another_encoder(reencoded, archive, tmp_path, monkeypatch):
    out = tmp_path / "little"
    build(config(archive, out, **SETTINGS))
    shard = out / "train/shard-00000.tar"
    shard.write_bytes(shard.read_bytes()[:-1])
    repair(config(archive, out, **SETTINGS))
    assert contents(out) == contents(reencoded)
    monkeypatch.setattr(handling, "encoder", lambda: "Pillow 1.0, libjpeg 6b")
    build(config(archive, out, **SETTINGS))
    shard.write_bytes(b"")
    words = r"was re-encoded by Pillow .* and here is Pillow 1.0.*repair it with the image"
    with pytest.raises(UserError, match=words):
        repair(config(archive, out, **SETTINGS))


BROKEN = {f"{FOLDER}/broken-{i:02}.JPEG": picture(2000 + i)[: 900 + i] for i in range(3)}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return write_zip(tmp_path_factory.mktemp("broken") / "a.zip", {**imagenet(300, 90), **BROKEN})


@pytest.mark.parametrize("settings", [{"decode": "all"}, SETTINGS])
def test_all_undecodable_pictures_are_named_at_once(broken, tmp_path, settings):
    with pytest.raises(UserError, match=r"3 images of .* cannot be decoded") as caught:
        build(config(broken, tmp_path / "out", **settings))
    assert all(name in str(caught.value) for name in BROKEN)
    assert "leave_out" in str(caught.value)
    assert not (tmp_path / "out/manifest.json").exists()
    assert list(tmp_path.rglob("*.tmp")) == []


def test_a_preparation_gives_up_after_so_many_undecodable_pictures(tmp_path):
    many = {f"{FOLDER}/b{i}.JPEG": b"no picture %d" % i for i in range(60)}
    path = write_zip(tmp_path / "a.zip", {**imagenet(30, 9), **many})
    with pytest.raises(UserError, match=r"\d\d images of"):
        build(config(path, tmp_path / "out", decode="all"))


@pytest.mark.parametrize("settings", [{"decode": "all"}, SETTINGS])
def test_undecodable_pictures_are_left_out_on_request_and_listed(broken, tmp_path, settings, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(UserError):
        build(config(broken, out, **settings))
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("*.tar")}
    assert kept
    build(config(broken, out, undecodable="leave_out", **settings))
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    shards = open_split(out, "train")
    assert len(shards) == 300
    assert len({bytes(shards.read(i)) for i in range(300)}) == 300
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["left_out"] == sorted(BROKEN)
    assert manifest["splits"]["train"]["samples"] == 300
    verify(out)
    build(config(broken, out, undecodable="leave_out", **settings))
    with pytest.raises(UserError, match=r"without 3 images .*undecodable is 'fail': set 'leave_out'"):
        build(config(broken, out, **settings))
    monkeypatch.setattr(building, "say", lambda text: None)
    (out / "train/shard-00000.tar").write_bytes(b"")
    before = contents(out)
    repair(config(broken, out, undecodable="leave_out", **settings))
    after = contents(out)
    assert {name for name in after if after[name] != before[name]} == {"train/shard-00000.tar"}
    verify(out)


def test_leaving_out_needs_a_look_at_every_picture():
    source = {"kind": "path", "path": "/a.zip"}
    with pytest.raises(UserError, match="'leave_out' needs decode: 'all'"):
        parse({"source": source, "out": "/x", "undecodable": "leave_out"})


@pytest.mark.filterwarnings("ignore:.*decompression bomb")
def test_a_picture_that_claims_too_many_pixels_is_not_unpacked(tmp_path):
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.new("1", (12_000, 12_000)).save(buffer, "PNG")
    assert len(buffer.getvalue()) < 100_000
    path = write_zip(tmp_path / "a.zip", {**imagenet(9, 6), f"{FOLDER}/bomb.JPEG": buffer.getvalue()})
    with pytest.raises(UserError, match=r"bomb.JPEG.*12,000 x 12,000 pixels"):
        build(config(path, tmp_path / "out", decode="all"))


@pytest.mark.parametrize("decode", ["sampled", "all"])
def test_a_picture_of_another_format_is_named_wherever_it_stands(tmp_path, decode):
    webp = encoded(64, 64, "WEBP")
    path = write_zip(tmp_path / "a.zip", {**imagenet(9, 6), f"{FOLDER}/new.JPEG": webp})
    with pytest.raises(UserError, match=r"new.JPEG .*it is neither a JPEG nor a PNG; convert it"):
        build(config(path, tmp_path / "out", decode=decode))


def test_large_pictures_are_not_unpacked_all_at_once(tmp_path, monkeypatch):
    crowd, load = Crowd(50 * 100), handling._load

    def counted(picture):
        with crowd.holding():
            load(picture)

    monkeypatch.setattr(handling, "_load", counted)
    monkeypatch.setattr(limits, "pixels", crowd)
    content = memoryview(encoded(50, 100))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: handling.check(content), range(24)))
    assert crowd.most == 100 * 100


def test_a_name_in_an_archive_steers_no_terminal(tmp_path):
    """Neither on the program's output nor in the termination message, which trainyard why and kubectl print."""
    name = "\x1b]0;owned\x07\x9b2J\u202egpj"
    path = write_zip(tmp_path / "a.zip", {**imagenet(9, 6), f"{FOLDER}/{name}.JPEG": b"no picture"})
    said = tmp_path / "said"
    said.touch()
    settings = [f"source.path={path}", "source.kind=path", f"out={tmp_path / 'out'}", "decode=all"]
    chosen = [part for one in settings for part in ("--set", one)]
    command = [sys.executable, "-m", "trainyard", "prepare", "build", *chosen]
    env = os.environ | {"TRAINYARD_TERMINATION_LOG": str(said)}
    done = subprocess.run(command, env=env, capture_output=True, check=False, encoding="utf-8")
    assert done.returncode == 2
    for text in (done.stdout + done.stderr, said.read_text()):
        assert r"\x1b]0;owned\x07\x9b2J\u202egpj.JPEG" in text or text == done.stdout
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


def test_a_crash_leaves_no_core(tmp_path):
    """A core would hold credentials. The limit is what the kernel reads."""
    code = """
import contextlib, resource
from trainyard.prepare import command as program
with contextlib.suppress(Exception):
    program.main(["build"])
print(resource.getrlimit(resource.RLIMIT_CORE)[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
