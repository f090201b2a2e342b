"""A complete folder whose source has changed since: what is new there is said, with the next name."""

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.prepare.make_archives import config, contents, imagenet, picture, write_folder, write_zip
from trainyard.prepare.build import build
from trainyard.prepare.since import difference, next_name

SAID = "has changed since"


def folder(root: Path, **more: int) -> Path:
    """A folder of two classes with six images each, and more of others."""
    classes = {"ash": 6, "elm": 6, **more}
    members = {
        f"{k}/{i}.jpg": picture(100 * n + i) for n, (k, count) in enumerate(classes.items()) for i in range(count)
    }
    return write_folder(root, members)


def again(source: Path, out: Path, capsys: pytest.CaptureFixture[str], **settings: object) -> str:
    """What a preparation of a complete folder says."""
    capsys.readouterr()
    before = contents(out)
    build(config(source, out, **{"layout": "folders", **settings}))
    assert contents(out) == before, "it is left as it is"
    said = capsys.readouterr().err
    assert "is complete" in said
    return said


def test_new_images_and_classes_are_said_with_the_next_name(tmp_path, capsys):
    source, out = folder(tmp_path / "pictures"), tmp_path / "trees"
    build(config(source, out, layout="folders"))
    assert SAID not in again(source, out, capsys)
    folder(source, oak=9)
    (source / "ash/more.jpg").write_bytes(picture(999))
    said = again(source, out, capsys)
    assert f"{source} has changed since {out} was prepared: 10 more images; 1 class is new (oak). The prepared " in said
    assert f"out={tmp_path / 'trees-2'} (on a cluster global.dataset.name: trees-2)" in said
    build(config(source, tmp_path / "trees-2", layout="folders"))
    assert SAID not in again(source, tmp_path / "trees-2", capsys)
    shutil.rmtree(source / "ash")
    said = again(source, tmp_path / "trees-2", capsys)
    assert "7 fewer images; 1 class is gone (ash)" in said
    assert "name: trees-3" in said


def test_what_a_preparation_would_refuse_now_is_said(tmp_path, capsys):
    source, out = folder(tmp_path / "pictures"), tmp_path / "trees"
    build(config(source, out, layout="folders"))
    (source / "elm/scan.webp").write_bytes(b"RIFF....WEBP")
    assert "a preparation would refuse it now" in again(source, out, capsys)


def test_changed_files_are_said_and_hidden_ones_are_not(tmp_path, capsys):
    source, out = folder(tmp_path / "pictures"), tmp_path / "trees"
    build(config(source, out, layout="folders"))
    (source / "elm/.DS_Store").write_bytes(b"x")
    assert SAID not in again(source, out, capsys)
    os.utime(source / "elm/1.jpg", (1, 1))
    assert "as many images in the same classes, some with another name, size or time" in again(source, out, capsys)


def test_a_source_that_is_gone_is_not_needed(tmp_path, capsys):
    source, out = folder(tmp_path / "pictures"), tmp_path / "trees"
    build(config(source, out, layout="folders"))
    shutil.rmtree(source)
    assert SAID not in again(source, out, capsys)


def test_an_archive_is_compared_by_its_size(tmp_path, capsys):
    source, out = write_zip(tmp_path / "a.zip", imagenet(9, 6)), tmp_path / "little"
    build(config(source, out))
    assert SAID not in again(source, out, capsys, layout="imagenet")
    size = source.stat().st_size
    write_zip(source, imagenet(12, 6))
    said = again(source, out, capsys, layout="imagenet")
    assert f"it has {source.stat().st_size:,} bytes and had {size:,}" in said


def test_the_next_name_is_free(tmp_path):
    assert next_name(tmp_path / "trees") == "trees-2"
    (tmp_path / "trees-2").mkdir()
    assert next_name(tmp_path / "trees") == next_name(tmp_path / "trees-2") == "trees-3"
    assert next_name(tmp_path / "ilsvrc-2012") == "ilsvrc-2013"
    assert next_name(tmp_path / "-7") == "-7-2"


def test_images_that_were_left_out_are_no_news():
    before, now = Counter(ash=5, elm=3), Counter(ash=6, elm=3)
    assert (
        difference(before, now, left_out=1)
        == "as many images in the same classes, some with another name, size or time"
    )
    assert difference(before, now) == "1 more image"
