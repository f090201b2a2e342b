"""Preparation with seekable pictures: the same pixels, labels and order, the same bytes whatever the parallelism."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.data.test_decode import built, encoded, photo
from tests.unit.prepare.make_archives import DATA, SYNSETS, config, contents, imagenet, write_zip
from trainyard import native
from trainyard.core.exits import ExitError, UserError
from trainyard.prepare import rewriting
from trainyard.prepare.build import build
from trainyard.prepare.settings import parse
from trainyard.prepare.verify import repair, verify
from trainyard.shards import manifest as manifests
from trainyard.shards.reader import open_split

__all__ = ["built"]
FOLDER = f"{DATA}/train/{SYNSETS[0]}"
ODD = {
    f"{FOLDER}/large.JPEG": encoded(photo(400, 600)),
    f"{FOLDER}/progressive.JPEG": encoded(photo(200, 300), progressive=True),
    f"{FOLDER}/cmyk.JPEG": encoded(photo(80, 60).convert("CMYK")),
    f"{FOLDER}/png.JPEG": encoded(photo(90, 90), "PNG"),
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, built: None) -> Path:
    return write_zip(tmp_path_factory.mktemp("odd") / "a.zip", {**imagenet(), **ODD})


@pytest.fixture(scope="module")
def seekable(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("seekable") / "little"
    build(config(archive, out, seekable=True))
    return out


def pixels(data: bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture)


def test_it_is_the_default() -> None:
    assert parse({"source": {"kind": "path", "path": "/a.zip"}, "out": "/x"}).seekable


def test_pictures_labels_and_order_are_those_of_untouched_shards(seekable: Path, archive: Path, tmp_path: Path) -> None:
    build(config(archive, tmp_path / "little"))
    for split in ("train", "val"):
        new, old = open_split(seekable, split), open_split(tmp_path / "little", split)
        assert np.array_equal(new.labels, old.labels)
        for i in range(len(old)):
            assert np.array_equal(pixels(new.read(i)), pixels(old.read(i)))
    assert ODD[f"{FOLDER}/cmyk.JPEG"] in {
        new.read(i) for new in [open_split(seekable, "train")] for i in range(len(new))
    }


def test_the_manifest_says_what_was_done(seekable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((seekable / "manifest.json").read_text())
    assert manifest["settings"]["seekable"] == rewriting.rewriter()
    count = len(imagenet()) - 5 + 2  # all but five other members; and two of the odd ones
    assert manifest["seekable"] == {rewriting.REWRITTEN: count, rewriting.KEPT[1]: 1, rewriting.KEPT[2]: 1}
    assert manifests.load(seekable).seekable == manifest["seekable"]
    verify(seekable)
    assert f"{count:,} images: rewritten" in capsys.readouterr().err


def test_the_same_bytes_whatever_the_parallelism_and_after_a_stop(
    seekable: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(config(archive, tmp_path / "one/little", seekable=True, workers=1))
    assert contents(tmp_path / "one/little") == contents(seekable)
    real, calls = rewriting.rewrite, []

    def failing(content: bytes) -> object:
        calls.append(1)
        if len(calls) == 350:
            raise ExitError("enough", 1)
        return real(content)

    monkeypatch.setattr(rewriting, "rewrite", failing)
    out = tmp_path / "little"
    with pytest.raises(ExitError):
        build(config(archive, out, seekable=True, workers=1))
    assert list(out.rglob("*.tar"))
    build(config(archive, out, seekable=True))
    assert contents(out) == contents(seekable)
    assert len(calls) < 350 + len(imagenet())  # finished shards were kept


def test_a_damaged_shard_is_rewritten_again_but_not_by_another_rewriter(
    seekable: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "little"
    build(config(archive, out, seekable=True))
    shard = out / "train/shard-00000.tar"
    os.truncate(shard, 1000)
    repair(config(archive, out, seekable=True))
    assert contents(out) == contents(seekable)
    for other in ("2 on libjpeg-turbo 9", ""):
        monkeypatch.setattr(rewriting, "rewriter", lambda other=other: other)
        build(config(archive, out, seekable=True))  # a complete folder stays valid
        shard.write_bytes(b"")
        with pytest.raises(UserError, match=r"made seekable by rewriter 1 on .*repair it with the image"):
            repair(config(archive, out, seekable=True))
        monkeypatch.undo()
        repair(config(archive, out, seekable=True))


@pytest.mark.parametrize("before", [False, True])
def test_a_prepared_folder_stays_as_it_was_prepared(
    before: bool, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one of a version without the key: nothing is prepared again, and a repair does what was done before."""
    out = tmp_path / "little"
    build(config(archive, out, seekable=before))
    assert ("seekable" in json.loads((out / "manifest.json").read_text())) == before
    found = contents(out)
    build(config(archive, out, seekable=not before))
    assert f"prepared with seekable: {str(before).lower()}, and stays so" in capsys.readouterr().err
    os.truncate(out / "val/shard-00000.tar", 1000)
    repair(config(archive, out, seekable=not before))
    assert contents(out) == found


def test_reencoded_pictures_are_seekable_too(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "little"
    build(config(archive, out, seekable=True, reencode={"resize": 100}))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["seekable"] == {rewriting.REWRITTEN: sum(s["samples"] for s in manifest["splits"].values())}
    build(config(archive, tmp_path / "plain/little", reencode={"resize": 100}))
    new, old = open_split(out, "train"), open_split(tmp_path / "plain/little", "train")
    assert all(np.array_equal(pixels(new.read(i)), pixels(old.read(i))) for i in range(len(old)))


def test_without_the_c_library_pictures_keep_their_bytes_and_the_log_says_so(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build(config(archive, tmp_path / "untouched/little"))
    monkeypatch.setattr(native, "library", lambda: None)
    build(config(archive, tmp_path / "little", seekable=True))
    assert "not made seekable: the decoder in C is not in this installation" in capsys.readouterr().err
    assert contents(tmp_path / "little") == contents(tmp_path / "untouched/little")
