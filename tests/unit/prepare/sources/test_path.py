import os
import shutil

import pytest

from tests.unit.prepare.make_archives import config, contents, imagenet, picture, pictures, write_folder, write_zip
from trainyard.core.exits import ExitError, UserError
from trainyard.prepare import build as building
from trainyard.prepare.build import build
from trainyard.prepare.sources.base import Traffic
from trainyard.prepare.verify import repair, verify

FOLDER = {f"{split}/{kind}/{i}.jpg": picture(i + 10 * (kind == "dog") + 100 * (split == "val"))
          for split in ("train", "val") for kind in ("dog", "cat") for i in range(3)}  # fmt: skip


def test_an_unpacked_imagenet_gives_what_its_archive_gives(tmp_path):
    members = imagenet(90, 30)
    build(config(write_zip(tmp_path / "a.zip", members), tmp_path / "zip" / "little"))
    build(config(write_folder(tmp_path / "folder", members), tmp_path / "little", decode="all"))
    for split in ("train", "val"):
        assert pictures(tmp_path / "little", split) == pictures(tmp_path / "zip/little", split)
    verify(tmp_path / "little")


def test_a_folder_in_imagefolders_layout_whatever_the_parallelism(tmp_path):
    write_folder(tmp_path / "pets", FOLDER)
    build(config(tmp_path / "pets", tmp_path / "one/little", layout="imagefolder", workers=1))
    build(config(tmp_path / "pets", tmp_path / "many/little", layout="imagefolder", workers=8))
    assert contents(tmp_path / "one/little") == contents(tmp_path / "many/little")
    expected = {content: name.split("/")[1] for name, content in FOLDER.items() if name.startswith("val")}
    assert pictures(tmp_path / "one/little", "val") == expected


def test_a_damaged_shard_is_repaired_from_the_folder_and_a_changed_folder_refused(tmp_path):
    root = write_folder(tmp_path / "pets", FOLDER)
    settings = config(root, tmp_path / "little", layout="imagefolder")
    build(settings)
    before = contents(tmp_path / "little")
    (tmp_path / "little/train/shard-00000.tar").write_bytes(b"")
    repair(settings)
    assert contents(tmp_path / "little") == before
    (tmp_path / "little/train/shard-00000.tar").write_bytes(b"")
    (root / "train/cat/0.jpg").write_bytes(picture(77))
    with pytest.raises(UserError, match="is not the one"):
        repair(settings)


def test_a_file_that_changes_or_vanishes_meanwhile_is_named(tmp_path, monkeypatch):
    real = building.read_catalogue
    for change in (
        lambda path: path.write_bytes(b"x"),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.unlink(),
    ):
        root = write_folder(tmp_path / "pets", FOLDER)

        def then(*arguments, change=change, root=root):
            found = real(*arguments)
            change(root / "train/dog/1.jpg")
            return found

        monkeypatch.setattr(building, "read_catalogue", then)
        with pytest.raises(UserError, match=r"pets/train/dog/1.jpg changed while it was read"):
            build(config(root, tmp_path / "little", layout="imagefolder"))
        assert not (tmp_path / "little/manifest.json").exists()
        shutil.rmtree(root)


def test_links_are_followed_and_loops_named(tmp_path):
    root = write_folder(tmp_path / "pets", FOLDER)
    store = write_folder(tmp_path / "store", {"a.jpg": picture(50)})
    (root / "train/cat/linked.jpg").symlink_to(store / "a.jpg")
    build(config(root, tmp_path / "little", layout="imagefolder"))
    assert pictures(tmp_path / "little", "train")[picture(50)] == "cat"
    (root / "train/cat/up").symlink_to(root)
    with pytest.raises(UserError, match="is a link to a folder that is listed already"):
        build(config(root, tmp_path / "other", layout="imagefolder"))
    (root / "train/cat/up").unlink()
    (root / "train/cat/up").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"1 links to images that are not there \(first train/cat/up\)"):
        build(config(root, tmp_path / "other", layout="imagefolder"))


def test_odd_names_and_empty_files_in_a_folder(tmp_path):
    names = ['train/ä ö/\'quoted "x".jpg', "train/日本/line\nbreak.jpg", "val/ä ö/1.jpg", "val/日本/1.jpg"]
    root = write_folder(tmp_path / "pets", {name: picture(i) for i, name in enumerate(names)})
    with open(os.fsencode(root) + b"/train/\xc3\xa4 \xc3\xb6/\xff.jpg", "wb") as file:  # noqa: PTH123 - no UTF-8
        file.write(picture(9))
    (root / "empty-note.txt").touch()
    build(config(root, tmp_path / "little", layout="imagefolder"))
    assert pictures(tmp_path / "little", "train") == {picture(0): "ä ö", picture(1): "日本", picture(9): "ä ö"}
    (root / "train/日本/none.jpg").touch()
    with pytest.raises(UserError, match=r"train/日本/none.jpg in .* is empty"):
        build(config(root, tmp_path / "other", layout="imagefolder"))


def test_no_folder_and_no_archive_at_all(tmp_path):
    with pytest.raises(UserError, match="cannot be opened"):
        build(config(tmp_path / "none", tmp_path / "little"))
    (tmp_path / "a.zip").write_bytes(b"not an archive " * 100)
    with pytest.raises(UserError, match="neither a zip nor a tar"):
        build(config(tmp_path / "a.zip", tmp_path / "little"))
    (tmp_path / "empty").mkdir()
    with pytest.raises((UserError, ExitError), match="holds no images"):
        build(config(tmp_path / "empty", tmp_path / "little", layout="imagefolder"))


def test_a_folder_is_not_prepared_into_itself(tmp_path):
    for out in (tmp_path, tmp_path / "deep" / "little"):
        with pytest.raises(UserError, match="lies in the source's own folder"):
            config(tmp_path, out)


def test_any_range_over_the_files_of_a_folder(tmp_path):
    from trainyard.prepare.archives.folder import FolderSource

    parts = {"a": b"", "b": b"12345", "c": b"", "d": b"678", "e/f": b"9", "e/g": b""}
    source = FolderSource(write_folder(tmp_path / "x", parts), Traffic())
    # In the order of the folders' paths, then of names
    whole = b"123456789"
    assert source.size == len(whole)
    for start in range(len(whole)):
        for stop in range(start + 1, len(whole) + 1):
            assert bytes(source.read_range(start, stop - start)) == whole[start:stop]
