"""Names as people's data sets have them: what decides a label is never lost, and no picture is dropped in silence.

The catalogue is read alone: it decides what becomes a sample, before anything is made of it.
"""

import bz2
import contextlib
import io
import lzma
import os
import random
import re
import tarfile
import unicodedata
import zipfile
from collections import Counter

import pytest

from tests import documents
from tests.unit.prepare.make_archives import config, picture, write_folder, write_tar, write_zip
from trainyard.core.exits import UserError
from trainyard.prepare.archives import open_container, open_object
from trainyard.prepare.archives.members import name_of
from trainyard.prepare.archives.stream import decompress
from trainyard.prepare.catalogue import read_catalogue
from trainyard.prepare.class_names import Naming
from trainyard.prepare.layouts import layout_of
from trainyard.prepare.sources.base import Traffic
from trainyard.prepare.sources.path import PathSource

JPEG = picture(1)
WEBP = b"RIFF\x10\0\0\0WEBPVP8 "
GBK = [word.encode("gbk").decode("utf-8", "surrogateescape") for word in ("鸟类", "狗狗", "牛马")]
TABLE = {"file": "labels.csv", "folder": "img"}


def catalogue(path, layout="imagefolder", skip=(), naming=None, **settings):
    """What a preparation would take from an archive or folder."""
    wanted = config(path, path.parent / "out", layout=layout, skip=list(skip), **settings)
    container = open_container(open_object(wanted.source, Traffic()), path.parent / "work", Traffic())
    return read_catalogue(
        container, layout_of(wanted), frozenset(wanted.skip), naming, wanted.convert != "none"
    ), container


def classes(path, layout="imagefolder", skip=(), **settings):
    """How many samples each class has, in both splits."""
    found, _ = catalogue(path, layout, skip, **settings)
    counts = Counter(int(label) for table in found.splits.values() for label in table["label"])
    return {entry.synset: counts[i] for i, entry in enumerate(found.classes)}


def pairs(prefix="", names=("cat", "dog"), count=2, splits=("train", "val")):
    return {f"{prefix}{split}/{klass}/{i}.jpg": JPEG for split in splits for klass in names for i in range(count)}


def undivided(names=("cat", "dog"), count=40, ending=".jpg", prefix=""):
    return {f"{prefix}{klass}/{i}{ending}": JPEG for klass in names for i in range(count)}


class RawInfo(zipfile.ZipInfo):
    """A member whose name's bytes are written as they are, and are not said to be UTF-8."""

    __slots__ = ("raw",)

    def _encodeFilenameFlags(self):  # noqa: N802 - zipfile's own name
        return self.raw, 0


def raw_zip(path, members, extra=lambda raw: b""):
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, content) in enumerate(members.items()):
            info = RawInfo(str(number))
            info.raw = name if isinstance(name, bytes) else os.fsencode(name)
            info.extra = extra(info.raw)
            archive.writestr(info, content)
    return path


# Bytes that are not UTF-8


def test_gbk_folder_and_tar_are_refused_with_the_command_that_renames(tmp_path):
    for path in (write_folder(tmp_path / "gbk", pairs(names=GBK)), write_tar(tmp_path / "gbk.tar", pairs(names=GBK))):
        with pytest.raises(
            UserError, match=r"12 names in .* are not UTF-8 \(first: train/.*\\x.*convmv -r -f gbk -t utf8"
        ):
            classes(path)


@pytest.mark.parametrize(
    ("encoding", "names"),
    [("gbk", ("鸟类", "狗狗", "牛马")), ("big5", ("功", "許", "蓋")), ("latin-1", ("pâte", "pâté", "pâtè")),
     ("shift_jis", ("表示", "ソフト", "犬"))],  # of which a byte is a backslash's in two
)  # fmt: skip
def test_gbk_zip_keeps_its_classes_apart_and_says_what_they_were_read_as(tmp_path, capsys, encoding, names):
    members = {name.encode(encoding): content for name, content in pairs(names=names).items()}
    assert sorted(classes(raw_zip(tmp_path / "a.zip", members)).values()) == [4, 4, 4]
    assert "12 names are not UTF-8 and were read as code page 437" in capsys.readouterr().err


def test_zip_with_utf8_that_it_does_not_declare_and_with_winrars_field(tmp_path):
    def field(raw):
        import zlib

        content = b"\1" + zlib.crc32(raw).to_bytes(4, "little") + raw.decode("gbk").encode()
        return b"\x75\x70" + len(content).to_bytes(2, "little") + content

    assert classes(raw_zip(tmp_path / "mac.zip", pairs(names=("Café", "Thé")))) == {"Café": 4, "Thé": 4}
    members = {name.encode("gbk"): content for name, content in pairs(names=("鸟类", "狗狗")).items()}
    assert classes(raw_zip(tmp_path / "rar.zip", members, field)) == {"狗狗": 4, "鸟类": 4}


def test_a_file_whose_own_name_is_not_utf8_is_kept_named_and_can_be_skipped(tmp_path):
    odd = {f"train/cat/{name}.jpg": JPEG for name in ("\udcc4", "\udcc5")}
    path = write_tar(tmp_path / "a.tar", pairs() | odd)
    found, container = catalogue(path)
    assert len(found.splits["train"]) == 6
    offset = max(int(row["offset"]) for row in found.splits["train"])
    assert name_of(container, offset) == r"train/cat/\xc5.jpg"
    assert classes(path, skip=[r"train/cat/\xc5.jpg"])["cat"] == 5


@pytest.mark.parametrize(("encoding", "words"), [("latin-1", "line 2; .*iconv -f latin1"), ("gb2312", "iconv -f gbk"),
                                                 ("utf-16", "iconv -f utf16"), ("utf-16-le", "iconv -f utf-16le"),
                                                 ("utf-16-be", "iconv -f utf-16be")])  # fmt: skip
def test_latin1_csv_is_refused_with_the_command_that_converts_it(tmp_path, encoding, words):
    labels = ("狗狗", "牛马") if encoding == "gb2312" else ("pâte", "pâté")
    text = "file,label\n" + "".join(f"{i}.jpg,{labels[i % 2]}\n" for i in range(20))
    members = {f"img/{i}.jpg": JPEG for i in range(20)}
    path = write_folder(tmp_path / "a", members | {"labels.csv": text.encode(encoding)})
    with pytest.raises(UserError, match=rf"labels.csv in .* not UTF-8.*{words}"):
        classes(path, "csv", csv=TABLE)
    for sound in ("utf-8", "utf-8-sig"):
        write_folder(path, {"labels.csv": text.encode(sound)})
        assert classes(path, "csv", csv=TABLE) == dict.fromkeys(sorted(labels), 10)


def test_latin1_names_of_classes_and_of_imagenets_tables_are_refused(tmp_path):
    from tests.unit.prepare.make_archives import imagenet

    path = write_zip(tmp_path / "a.zip", pairs() | {"names.txt": "cat Zibetkätzchen\n".encode("latin-1")})
    with pytest.raises(UserError, match=r"names.txt in .* is not UTF-8 at line 1; .*iconv -f latin1"):
        catalogue(path, naming=Naming("names.txt", {}))
    for table in ("LOC_synset_mapping.txt", "LOC_val_solution.csv"):
        members = imagenet(9, 6)
        members[table] += b"n09 \xe9"
        with pytest.raises(UserError, match=rf"{table} of .* is not UTF-8 at line \d"):
            classes(write_zip(tmp_path / "b.zip", members), "imagenet")


# Unicode forms, and classes that look alike


def formed(members, form, where=""):
    return {unicodedata.normalize(form, name) if where in name else name: content for name, content in members.items()}


def test_nfd_in_val_is_the_class_of_train_and_is_said_once(tmp_path, capsys):
    path = write_folder(tmp_path / "a", formed(pairs(names=("Café", "Thé")), "NFD", "val/"))
    assert classes(path) == {"Café": 4, "Thé": 4}
    assert capsys.readouterr().err.count("4 names in another Unicode form") == 1


def test_nfd_csv_finds_its_pictures_in_either_form(tmp_path):
    text = "file,label\n" + "".join(f"é{i}.jpg,{'ä' if i % 2 else 'b'}\n" for i in range(20))
    for number, (of_names, of_text) in enumerate((("NFD", "NFC"), ("NFC", "NFD"))):
        members = formed({f"img/é{i}.jpg": JPEG for i in range(20)}, of_names)
        csv = unicodedata.normalize(of_text, text).encode()
        path = write_folder(tmp_path / str(number), members | {"labels.csv": csv})
        assert classes(path, "csv", csv=TABLE) == {"b": 10, "ä": 10}


def test_two_files_that_differ_in_form_alone_are_two_pictures_and_for_a_csv_an_error(tmp_path):
    twice = {**pairs(), "train/cat/é.jpg": JPEG, unicodedata.normalize("NFD", "train/cat/é.jpg"): JPEG}
    assert classes(write_tar(tmp_path / "a.tar", twice)) == {"cat": 6, "dog": 4}
    members = {"img/é.jpg": JPEG, unicodedata.normalize("NFD", "img/é.jpg"): JPEG, "img/a.jpg": JPEG}
    path = write_tar(tmp_path / "b.tar", members | {"labels.csv": "file,label\né.jpg,x\na.jpg,x\n".encode()})
    with pytest.raises(
        UserError, match=r"img/é.jpg .* lists it once, and two files have this name: in two Unicode forms"
    ):
        classes(path, "csv", csv=TABLE)


@pytest.mark.parametrize("name", ["cat ", "Cat", "c.a.t", "cat_"])
def test_space_and_case_of_a_class_in_val_alone_are_named_in_quotes(tmp_path, name):
    members = pairs(splits=["train"]) | pairs(names=(name, "dog"), splits=["val"])
    with pytest.raises(UserError, match=rf"class '{name}' in val but not in train, which has 'cat'"):
        classes(write_folder(tmp_path / "a", members))


# What is no data, and what is a picture


@pytest.mark.parametrize(
    "name",
    ["train/.ipynb_checkpoints/0-checkpoint.jpg", "train/cat/.ipynb_checkpoints/0.jpg", ".snapshot/1/train/cat/old.jpg",
     ".Trash-1000/files/train/cat/gone.jpg", "train/cat/@eaDir/0.jpg/SYNOPHOTO_THUMB_M.jpg", "#recycle/train/cat/1.jpg",
     "$RECYCLE.BIN/train/cat/1.jpg", "lost+found/train/cat/1.jpg", "train/cat/._0.jpg", "__MACOSX/train/cat/._0.jpg",
     "train/cat/desktop.ini", "train/cat/Thumbs.db", "train/.DS_Store", ".Spotlight-V100/train/cat/1.jpg",
     "train/cat/.nfs0001.jpg", "train/cat/.fuse_hidden0001", "train/cat/0.jpg:Zone.Identifier",
     "train/cat/0.jpg\uf03aZone.Identifier", "train/cat/0.jpg:Zone.Identifier:$DATA"],
)  # fmt: skip
def test_hidden_and_service_files_are_no_data_in_any_container_and_are_counted(tmp_path, capsys, name):
    members = pairs() | {name: JPEG}
    found = {}
    for path in (write_folder(tmp_path / "a", members), write_zip(tmp_path / "a.zip", members),
                 write_tar(tmp_path / "a.tar", members)):  # fmt: skip
        assert classes(path) == {"cat": 4, "dog": 4}
        # A folder's list of what to skip may name it all the same
        assert classes(path, skip=[name]) == {"cat": 4, "dog": 4}
        found[path.suffix] = capsys.readouterr().err.count("hidden and service files left out: 1 ")
    assert found == {"": 2, ".zip": 2, ".tar": 2}


def test_imagenets_layout_and_layout_folders_have_the_same_idea_of_no_data(tmp_path):
    from tests.unit.prepare.make_archives import DATA, SYNSETS, imagenet

    noise = [f"{DATA}/train/.DS_Store", f"{DATA}/train/{SYNSETS[0]}/._{SYNSETS[0]}_0.JPEG", f"{DATA}/val/Thumbs.db"]
    path = write_zip(tmp_path / "a.zip", imagenet(9, 6) | dict.fromkeys(noise, b"x"))
    assert sum(classes(path, "imagenet").values()) == 15
    thumbs = {f"cat/@eaDir/{i}.jpg/SYNOPHOTO_THUMB_M.jpg": JPEG for i in range(2)}
    assert classes(write_folder(tmp_path / "b", undivided() | thumbs), "folders") == {"cat": 40, "dog": 40}


def test_a_folder_that_may_not_be_read_is_no_matter_where_it_is_no_data(tmp_path):
    path = write_folder(tmp_path / "a", pairs())
    (path / "lost+found").symlink_to(path / "lost+found")  # cannot be followed, as root's own cannot be listed
    assert classes(path) == {"cat": 4, "dog": 4}


def test_jfif_no_ending_and_scrapers_endings_are_pictures_by_their_first_bytes(tmp_path):
    odd = {"cat/000": JPEG, "dog/x.jpg?w=300": JPEG, "dog/y.jpg.1": JPEG, "cat/really.webp": JPEG}
    odd |= {"cat/p.jpe": JPEG, "cat/IMG_1.HEIC": JPEG}  # as telephones save some
    members = undivided(["cat"]) | undivided(["dog"], ending=".jfif") | odd
    for path in (write_folder(tmp_path / "a", members), write_tar(tmp_path / "a.tar", members),
                 write_zip(tmp_path / "a.zip", members, packed="/")):  # fmt: skip
        assert classes(path, "folders") == {"cat": 44, "dog": 42}


def test_webp_in_a_class_is_counted_by_ending_and_a_class_of_it_alone_is_no_silent_loss(tmp_path):
    members = undivided() | dict.fromkeys(("cat/a.webp", "cat/b.webp", "cat/note.txt", "cat/LICENSE"), WEBP)
    members |= {f"emu/{name}": b"GIF89a" for name in ("0.gif", "1.gif", "2.GIF")}
    path = write_folder(tmp_path / "a", members)
    with pytest.raises(UserError) as caught:
        classes(path, "folders")
    for words in (
        "neither JPEG nor PNG: 3 .gif (first emu/0.gif), 2 .webp (first cat/a.webp)",
        "1 .txt (first cat/note",
        "1 without a usual ending (first cat/LICENSE)",
        "without them class 'emu' has no image (1 such cl",
    ):
        assert words in str(caught.value)  # fmt: skip
    assert "convert (convert: 'png' makes PNGs of .gif, .webp) or remove" in str(caught.value)
    skip = str(caught.value).rpartition("'skip': ")[2].replace("'", "").split(", ")
    assert classes(path, "folders", skip=skip) == {"cat": 40, "dog": 40}


def test_what_is_left_out_by_its_ending_is_named_where_images_have_that_ending_too(tmp_path):
    heic = b"\0\0\0\x18ftypheic" + bytes(200)
    path = write_folder(tmp_path / "a", undivided() | {"cat/1.HEIC": JPEG, "cat/2.HEIC": heic, "dog/3.avif": heic})
    with pytest.raises(UserError) as caught:
        classes(path, "folders")
    skip = str(caught.value).rpartition("'skip': ")[2].replace("'", "").split(", ")
    assert skip == ["*.avif", "cat/2.HEIC"]
    assert classes(path, "folders", skip=skip) == {"cat": 41, "dog": 40}


def test_classes_in_names_and_shards_of_webdataset_become_a_table(tmp_path):
    write_folder(tmp_path / "photos", {f"{klass}.{i}.jpg": JPEG for klass in ("cat", "dog") for i in range(9)})
    for layout in ("folders", "imagefolder"):
        with pytest.raises(UserError, match="layout 'csv' reads classes from a file"):
            classes(write_folder(tmp_path / layout, {"train/1.jpg": JPEG, "2.jpg": JPEG}), layout)
    documents.run("dataset.md", "(cd photos", cwd=tmp_path)
    assert classes(tmp_path / "photos", "csv") == {"cat": 9, "dog": 9}
    with pytest.raises(UserError, match=r"val_fraction = 0\.01: no class of .* has so many images.*raise it"):
        classes(tmp_path / "photos", "csv", csv={"val_fraction": 0.01})
    shards = tmp_path / "shards"
    shards.mkdir()
    for shard in range(2):
        samples = {f"{shard}{i}": b"%d" % (i % 3) for i in range(12)}
        members = {f"{key}.jpg": JPEG for key in samples} | {f"{key}.cls": klass for key, klass in samples.items()}
        write_tar(shards / f"train-{shard}.tar", members)
    documents.run("dataset.md", "mkdir photos", cwd=shards)
    assert classes(shards / "photos", "csv") == {"0": 8, "1": 8, "2": 8}
    (shards / "photos").rename(shards / "before")
    write_tar(shards / "train-2.tar", members)  # keys of another shard
    with pytest.raises(AssertionError, match="File exists"):
        documents.run("dataset.md", "mkdir photos", cwd=shards)


def test_a_pattern_of_archives_is_named_as_one(tmp_path):
    with pytest.raises(UserError, match=r"cannot be opened.*a pattern names several.*cat a.tar b.tar > all.tar"):
        classes(tmp_path / "train-*.tar")


@pytest.mark.parametrize(
    ("name", "content"),
    [("0.ppm", b"P6 1 1 255 abc"), ("0.tga", b"\0\0\2"), ("000", WEBP), ("x.webp?w=300", WEBP), ("1", b"GIF89a"),
     *((f"IMG_{i}", start + bytes(200)) for i, start in enumerate((
         b"\0\0\0\x18ftypheic", b"\0\0\0\x1cftypavif", b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x0a", b"8BPS",
         b"P5\n1 1\n255\n", b"II\xbc\x01", bytes(128) + b"DICM")))],
    ids=lambda value: str(value)[:8],
)  # fmt: skip
def test_a_class_of_images_that_are_not_decoded_is_no_silent_loss_whatever_they_are_called(tmp_path, name, content):
    members = undivided() | {f"emu/{name}": content, "notes/LICENSE": b"x"}
    for path in (write_folder(tmp_path / "a", members), write_zip(tmp_path / "a.zip", members)):
        with pytest.raises(UserError, match=r"JPEG nor PNG: 1 .*without them class 'emu' has no image"):
            classes(path, "folders")
        assert classes(path, "folders", skip=["emu/*"]) == {"cat": 40, "dog": 40}


@pytest.mark.parametrize("name", ["0.npy", "0.mp4", "notes.txt", "0.bin", "all.zip", "0.pt"])
def test_a_folder_beside_classes_that_holds_no_image_is_no_silent_loss(tmp_path, name, capsys):
    members = undivided(prefix="pets/") | {f"pets/emu/{name}": b"x", "pets/labels/0.xml": b"x", "pets/src/a.py": b"x"}
    path = write_folder(tmp_path / "a", members)
    with pytest.raises(UserError, match=r"neither JPEG nor PNG: 1 .*without them class 'emu' has no image \(1 such"):
        classes(path, "folders")
    capsys.readouterr()
    assert classes(path, "folders", skip=["pets/emu/*"]) == {"cat": 40, "dog": 40}
    assert "in no class's folder: 1 .py, 1 .xml; named under 'skip': 1" in capsys.readouterr().err
    # elsewhere it is no class
    members = undivided(prefix="pets/") | {f"other/emu/{name}": b"x"}
    assert classes(write_folder(tmp_path / "b", members), "folders") == {"cat": 40, "dog": 40}


@pytest.mark.parametrize("packed", ["folder", "zip", "tar"])
@pytest.mark.parametrize("layout", ["imagefolder", "folders"])
def test_a_class_whose_folder_is_empty_is_no_silent_loss(tmp_path, layout, packed):
    """As after a copy that was broken off. Folders with other files, hidden ones, or in other places are no classes."""
    inside = "pets/train/" if layout == "imagefolder" else "pets/"
    members = pairs("pets/") if layout == "imagefolder" else undivided(prefix="pets/")
    files = {f"{inside}cat/.DS_Store": b"x", f"{inside}emu/Thumbs.db": b"x", "notes/a.txt": b"x"}
    path = write_folder(tmp_path / "a", members | files)
    for name in (f"{inside}owl", f"{inside}.git", f"{inside}cat/raw", "notes/drafts", "other"):
        (path / name).mkdir(parents=True)
    if packed == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for file in sorted(path.rglob("*")):
                archive.write(file, file.relative_to(path))
    if packed == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            archive.add(path, ".")
    path = path if packed == "folder" else tmp_path / f"a.{packed}"
    with pytest.raises(UserError, match=rf"that hold no files: {inside}(emu|owl) \(2 such\).*'skip': '{inside}\1/\*'"):
        classes(path, layout)
    found = classes(path, layout, skip=[f"{inside}emu/*", "*/owl/*"])
    assert found == dict.fromkeys(("cat", "dog"), 4 if layout == "imagefolder" else 40)


@pytest.mark.parametrize("packed", ["zip", "tar"])
def test_links_in_hidden_folders_of_an_archive_are_left_out(tmp_path, packed):
    """Such as those of a virtual environment beside the images."""
    path = write_zip(tmp_path / "a.zip", pairs()) if packed == "zip" else write_tar(tmp_path / "a.tar", pairs())
    for name, refused in ((".venv/bin/python", False), ("./train/./emu", True)):
        if packed == "zip":
            with zipfile.ZipFile(path, "a") as archive:
                info = zipfile.ZipInfo(name)
                info.create_system, info.external_attr = 3, 0o120777 << 16
                archive.writestr(info, "/usr/bin/python")
        else:
            with tarfile.open(path, "a") as archive:
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/python"
                archive.addfile(link)
        with pytest.raises(UserError, match=r"train/\./emu in .* is a link") if refused else contextlib.nullcontext():
            assert classes(path) == {"cat": 4, "dog": 4}


@pytest.mark.parametrize("packed", ["zip", "tar"])
def test_an_empty_class_is_found_beside_a_name_with_a_backslash(tmp_path, packed):
    """Amid the pass over all names, another one looks whether any of them has a slash."""
    members = pairs() | {"train/emu/": b"", "val/dog/a\\b.jpg": JPEG}
    if packed == "zip":
        write_zip(tmp_path / "a.zip", members)
    else:
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.type, info.size = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE, len(content)
                archive.addfile(info, io.BytesIO(content))
    with pytest.raises(UserError, match=r"that hold no files: train/emu \(1 such\)"):
        classes(tmp_path / f"a.{packed}")


def test_notes_outside_of_classes_are_left_out_and_counted(tmp_path, capsys):
    members = undivided(prefix="pets/") | {"pets/README.md": b"x", "boxes/cat/1.xml": b"x", "LICENSE": b"x"}
    assert classes(write_zip(tmp_path / "a.zip", members), "folders") == {"cat": 40, "dog": 40}
    assert "no images, and in no class's folder: 1 .md, 1 .xml, 1 without a usual" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"1 .txt \(first val/dog/a.txt\)"):
        classes(write_zip(tmp_path / "b.zip", pairs() | {"val/dog/a.txt": b"x"}))


def test_a_pattern_of_skip_that_nothing_fits_is_named(tmp_path):
    with pytest.raises(UserError, match=r"'skip' names \*.webp, which is not in"):
        classes(write_zip(tmp_path / "a.zip", pairs()), skip=["*.webp"])


# Folders


def test_locomotive_a_class_may_be_called_train_and_splits_are_told_from_classes(tmp_path):
    names = ("bus", "plane", "train")
    assert classes(write_folder(tmp_path / "a", undivided(names)), "folders") == dict.fromkeys(names, 40)
    with pytest.raises(UserError, match=r"train/cat/0.jpg .* has no place in the layout: train/ looks like a split"):
        classes(write_folder(tmp_path / "b", pairs()), "folders")
    with pytest.raises(UserError, match="no folders but train, val, which look like splits without classes"):
        classes(write_folder(tmp_path / "c", undivided(("train", "val"))), "folders")
    assert classes(write_folder(tmp_path / "d", pairs(names=("bus", "test", "train")))) == dict.fromkeys(
        ("bus", "test", "train"), 4
    )


@pytest.mark.parametrize("name", ["valid", "Validation"])
def test_valid_is_val(tmp_path, name):
    assert classes(write_folder(tmp_path / "a", pairs(splits=("train", name)))) == {"cat": 4, "dog": 4}
    with pytest.raises(UserError, match=r"(Validation and val|val and valid), which are folders of one split"):
        classes(write_folder(tmp_path / "a", pairs(splits=["val"])))


@pytest.mark.parametrize("names", [("Training", "Testing"), ("training", "TESTING")])
def test_training_beside_testing_is_refused_with_what_helps(tmp_path, names):
    train, test = names
    path = write_folder(tmp_path / "a", pairs("mri/", splits=names, count=10))
    with pytest.raises(UserError, match=rf"mri/{test} and mri/{train}, which look like splits with classes") as caught:
        classes(path, "folders")
    skip = str(caught.value).partition("'skip': '")[2].partition("'")[0]
    assert classes(path, "folders", skip=[skip]) == {"cat": 10, "dog": 10}
    with pytest.raises(UserError, match=rf"no folder val .*mri/{test} is left out; .*rename it to val.*'folders'"):
        classes(path)
    (path / "mri" / test).rename(path / "mri" / "val")
    assert classes(path) == {"cat": 20, "dog": 20}
    flat = write_folder(tmp_path / "b", undivided(names))
    with pytest.raises(UserError, match=r"no folders but .* which look like splits without classes"):
        classes(flat, "folders")


@pytest.mark.parametrize(
    ("train", "test"),
    [("seg_train/seg_train", "seg_test/seg_test"), ("training_set", "test_set"), ("TrainImages", "ValImages"),
     ("a/asl-train", "b/asl-validation"), ("trainset", "testset"), ("train2017", "test2017")],
)  # fmt: skip
def test_splits_by_part_of_a_folders_name_are_refused_with_what_helps(tmp_path, train, test):
    path = write_folder(tmp_path / "a", undivided(prefix=f"x/{train}/") | undivided(prefix=f"x/{test}/", count=5))
    with pytest.raises(UserError, match=r"x/\S+ and x/\S+, which look like splits with classes in them") as caught:
        classes(path, "folders")
    skip = str(caught.value).partition("'skip': '")[2].partition("'")[0]
    assert classes(path, "folders", skip=[skip]) == {"cat": 40, "dog": 40}


def test_splits_without_classes_are_not_taken_for_classes(tmp_path):
    members = undivided(("train2017", "val2017", "test2017")) | {"annotations/instances_val2017.json": b"{}"}
    with pytest.raises(UserError, match="has test2017 and train2017 and val2017, which look like splits without cl"):
        classes(write_folder(tmp_path / "a", members), "folders")
    apart = ("steam_train", "test_tube", "trainer", "contest", "validator", "train_val_test")
    assert classes(write_folder(tmp_path / "b", undivided(apart)), "folders") == dict.fromkeys(apart, 40)


def test_train_beside_test_names_the_folder_that_could_be_val(tmp_path):
    path = write_folder(tmp_path / "a", pairs(splits=("Train", "Test")))
    with pytest.raises(UserError, match=r"Test/cat/0.jpg .*Test/ looks like a split .*layout 'imagefolder'"):
        classes(path, "folders")
    with pytest.raises(
        UserError, match=r"no folder val .*, and Test is left out; .*rename it to val \(unpack an archive first\)$"
    ):
        classes(path)
    with pytest.raises(UserError, match=r"no folder val .*; give it one, beside Train$"):
        classes(write_folder(tmp_path / "b", pairs(splits=["Train"])))


def test_training_around_a_layout_or_alone_is_a_folder_as_any(tmp_path):
    assert classes(write_folder(tmp_path / "a", pairs("training/pets/"))) == {"cat": 4, "dog": 4}
    assert classes(write_folder(tmp_path / "b", undivided(prefix="training/")), "folders") == {"cat": 40, "dog": 40}
    assert classes(write_folder(tmp_path / "c", pairs(splits=("Training", "val")))) == {"cat": 4, "dog": 4}
    with pytest.raises(UserError, match="has Training and train, which are folders of one split"):
        classes(write_folder(tmp_path / "c", pairs(splits=["train"])))
    around = pairs("training/", splits=("train", "val", "test"))  # in it, a test's images are left out as anywhere
    assert classes(write_folder(tmp_path / "d", around)) == {"cat": 4, "dog": 4}


def test_nested_dup_is_refused_and_what_it_says_to_skip_helps(tmp_path):
    members = pairs("chest/") | pairs("chest/chest/")
    path = write_zip(tmp_path / "a.zip", members)
    with pytest.raises(UserError, match="twice, one in the other: in chest/chest and in chest") as caught:
        classes(path)
    skip = str(caught.value).rpartition("'skip': ")[2].replace("'", "").split(", ")
    assert classes(path, skip=skip) == {"cat": 4, "dog": 4}
    path = write_zip(tmp_path / "b.zip", undivided(prefix="pets/") | undivided(prefix="pets/pets/"))
    with pytest.raises(UserError, match="class 'cat' twice, one in the other: in pets/pets and in pets"):
        classes(path, "folders")


def test_a_layout_in_folders_beside_each_other_is_taken_as_one_and_that_is_said(tmp_path, capsys):
    path = write_zip(tmp_path / "a.zip", pairs("one/") | pairs("two/", count=1))
    assert classes(path) == {"cat": 6, "dog": 6}
    assert "the layout imagefolder lies in 2 folders of" in capsys.readouterr().err


def test_folders_in_a_class_are_taken_as_one_and_that_is_said(tmp_path, capsys):
    path = write_folder(tmp_path / "a", pairs("x/", names=("animals/cat", "animals/dog", "cars/raw", "emu")))
    assert classes(path) == {"animals": 8, "cars": 4, "emu": 4}
    said = "1 classes of {} have images in several folders, such as animals/cat and animals/dog: each is taken as one"
    assert said.format(path) in capsys.readouterr().err
    (path / "x/train/emu/notes").mkdir()
    (path / "x/train/emu/notes/1.txt").touch()
    assert classes(path, skip=["*/dog/*", "*.txt"]) == {"animals": 4, "cars": 4, "emu": 4}
    assert "several folders" not in capsys.readouterr().err
    assert classes(write_folder(tmp_path / "b", pairs(names=("cars/raw", "emu")))) == {"cars": 4, "emu": 4}
    assert "several folders" not in capsys.readouterr().err


def test_train_in_train_is_a_folder_around_the_layout(tmp_path):
    assert classes(write_folder(tmp_path / "a", pairs("train/"))) == {"cat": 4, "dog": 4}


def test_backslashes_separate_folders_where_nothing_else_does(tmp_path, capsys):
    members = {name.replace("/", "\\"): content for name, content in pairs("pets/").items()}
    path = raw_zip(tmp_path / "a.zip", {**members, "pets\\": b""})
    assert classes(path) == {"cat": 4, "dog": 4}
    assert "backslashes were taken for the separators" in capsys.readouterr().err
    assert classes(path, skip=["pets\\train\\cat\\0.jpg", "pets/val/cat/1.jpg"]) == {"cat": 2, "dog": 4}
    # In a name with slashes it is a character
    assert classes(raw_zip(tmp_path / "b.zip", pairs(names=("a\\b", "a")))) == {"a": 4, "a\\b": 4}
    rows = "file,label\n" + "".join(f"one\\{i}.jpg,{'ab'[i % 2]}\n" for i in range(20))
    members = {f"img/one/{i}.jpg": JPEG for i in range(20)}
    path = write_zip(tmp_path / "c.zip", members | {"labels.csv": rows.encode()})
    assert classes(path, "csv", csv=TABLE) == {"a": 10, "b": 10}


def test_dotslash_and_data_dot_lead_nowhere(tmp_path):
    assert classes(write_zip(tmp_path / "a.zip", undivided(prefix="./")), "folders") == {"cat": 40, "dog": 40}
    assert classes(write_tar(tmp_path / "a.tar", undivided(prefix="data/./")), "folders") == {"cat": 40, "dog": 40}
    with pytest.raises(UserError, match=r"train/cat/0\.jpg appears twice"):
        classes(write_zip(tmp_path / "b.zip", pairs() | {"train/./cat/0.jpg": JPEG}))


def test_links_to_nothing_stop_only_where_they_would_be_pictures(tmp_path, capsys):
    path = write_folder(tmp_path / "a", pairs())
    for name in ("README", "notes.txt", "train/cat/.annex"):
        (path / name).symlink_to("nowhere")
    assert classes(path) == {"cat": 4, "dog": 4}
    assert "2 links to nothing" in capsys.readouterr().err
    (path / "train/cat/annexed.jpg").symlink_to("../../.git/annex/objects/x.jpg")
    (path / "train/cat/000").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"2 links to images that are not there \(first train/cat/000\).*git annex get"):
        classes(path)
    assert classes(path, skip=["train/cat/annexed.jpg", "train/cat/000"]) == {"cat": 4, "dog": 4}


# Archives


def test_nested_zip_is_named_with_the_archives_in_it(tmp_path):
    inner = write_zip(tmp_path / "train.zip", pairs()).read_bytes()
    path = write_zip(tmp_path / "a.zip", {"train.zip": inner, "test.zip": inner, "sample.csv": b"id,label\n"})
    for layout in ("imagefolder", "folders"):
        with pytest.raises(UserError, match=r"holds no images .* but archives: test.zip, train.zip; unpack them"):
            classes(path, layout)


def test_a_tar_of_tars_is_named_with_the_archives_in_it(tmp_path):
    """As ImageNet's own `ILSVRC2012_img_train.tar`."""
    inner = write_tar(tmp_path / "inner.tar", {"n01_1.JPEG": JPEG}).read_bytes()
    path = write_tar(tmp_path / "a.tar", {"n01.tar": inner, "n02.tar": inner})
    for layout in ("imagefolder", "folders", "imagenet"):
        with pytest.raises(UserError, match=r"no images for the layout .* but archives: n01.tar, n02.tar; unpack them"):
            classes(path, layout)


@pytest.mark.parametrize(("layout", "around"), [("imagefolder", "pets/train/"), ("folders", "pets/"), ("folders", "")])
@pytest.mark.parametrize("ending", ["tar", "tar.gz", "ZIP", "7z"])
def test_an_archive_beside_classes_is_no_silent_loss(tmp_path, layout, around, ending):
    """As where unpacking an archive of archives, one for each class, was broken off."""
    members = pairs("pets/") if layout == "imagefolder" else undivided(prefix=around)
    packed = {f"{around}{name}.{ending}": b"x" for name in ("cat", "emu", "owl")}
    path = write_folder(tmp_path / "a", members | packed | {"whole.zip": b"x", f"{around}labels.csv.gz": b"x"})
    with pytest.raises(UserError, match=rf"class that is lost: {around}emu\.{ending} \(\d such\); unpack") as caught:
        classes(path, layout)
    pattern = str(caught.value).rpartition("'skip': ")[2].strip("'")
    count = 4 if layout == "imagefolder" else 40
    assert classes(path, layout, skip=[pattern]) == {"cat": count, "dog": count}


def test_an_archive_among_imagenets_synsets_is_no_silent_loss(tmp_path):
    from tests.unit.prepare.make_archives import DATA, SYNSETS, imagenet

    members = {name: content for name, content in imagenet(9, 6).items() if f"train/{SYNSETS[0]}" not in name}
    path = write_folder(tmp_path / "a", members | {f"{DATA}/train/{synset}.tar": b"x" for synset in SYNSETS})
    with pytest.raises(UserError, match=rf"class that is lost: {DATA}/train/{SYNSETS[0]}.tar \(1 such\); unpack"):
        classes(path, "imagenet")
    assert set(classes(path, "imagenet", skip=[f"{DATA}/train/*.tar"])) == set(SYNSETS[1:])


def test_the_archive_that_a_folder_was_unpacked_from_may_lie_beside_it(tmp_path):
    path = write_folder(tmp_path / "a", undivided() | {"pets.zip": b"x", "pets.tar.gz": b"x"})
    assert classes(path, "folders") == {"cat": 40, "dog": 40}
    path = write_folder(tmp_path / "b", pairs() | {"pets.zip": b"x", "train.tar": b"x", "train/cat.tar": b"x"})
    assert classes(path) == {"cat": 4, "dog": 4}


@pytest.mark.parametrize("name", ["data/train-00000.parquet", "train/0.tfrecord", "data.mdb", "train/data.npz"])
def test_tables_with_images_in_them_are_named(tmp_path, name):
    path = write_folder(tmp_path / "a", {name: b"x", "README.md": b"x"})
    ending = name.rpartition(".")[2]
    for layout in ("imagefolder", "folders"):
        with pytest.raises(UserError, match=rf"no images .* but tables: 1 \.{ending}; .*write each to a file"):
            classes(path, layout)


@pytest.mark.parametrize(("head", "words"), [
    (b"7z\xbc\xaf\x27\x1c\0\4", "is a 7z archive; unpack it"), (b"Rar!\x1a\x07\x01\0", "is a RAR archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", r"is packed by zstd; unpack it \(zstd -d FILE\)"),
    (b"\x04\x22\x4d\x18", r"is packed by lz4; unpack it \(lz4 -d FILE\)"),
    (b"\n<!DOCTYPE html><html>", "is an HTML page, not the archive; open the address in a browser"),
    (b"\xef\xbb\xbf<?xml version='1.0'?><Error>", "is an XML text"), (b'{"message": "no"}', "is a JSON text"),
    (b"version https://git-lfs.github.com/spec/v1\noid", r"is a Git LFS pointer, not the file; .*\(git lfs pull\)"),
    (b"PK\x07\x08PK\x03\x04", r"is a part of a zip in several parts; join them \(zip"), (JPEG, "is a single image"),
    (b"something else", "is neither a zip nor a tar"),
])  # fmt: skip
def test_an_object_that_is_no_archive_is_named_for_what_it_is(tmp_path, head, words):
    (tmp_path / "a.zip").write_bytes(head + bytes(600))
    with pytest.raises(UserError, match=words) as caught:
        classes(tmp_path / "a.zip")
    assert "get it again" not in str(caught.value)
    assert "tar" in str(caught.value)


def test_an_empty_object_and_the_last_part_of_a_zip_are_named(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(UserError, match="is empty"):
        classes(tmp_path / "a.zip")
    whole = bytearray(write_zip(tmp_path / "b.zip", pairs()).read_bytes())
    whole[whole.rindex(b"PK\x05\x06") + 4] = 2
    (tmp_path / "b.zip").write_bytes(whole)
    with pytest.raises(UserError, match=r"is the last of 3 parts of a zip; join them \(zip -s 0"):
        classes(tmp_path / "b.zip")


@pytest.mark.parametrize("ending", ["zip", "tar", "tgz"])
def test_the_first_of_several_parts_is_named_with_how_to_join_them(tmp_path, ending):
    write = {"zip": write_zip, "tar": write_tar, "tgz": lambda path, members: write_tar(path, members, "w:gz")}[ending]
    whole = write(tmp_path / "whole", pairs()).read_bytes()
    for number, part in enumerate((whole[: len(whole) // 2], whole[len(whole) // 2 :]), 1):
        (tmp_path / f"a.{ending}.00{number}").write_bytes(part)
    with pytest.raises(UserError, match=r"is cut short: .* of several parts, join them \(`cat PART1 PART2 > WHOLE`\)"):
        classes(tmp_path / f"a.{ending}.001")
    with pytest.raises(UserError, match=r"is neither a zip nor a tar|so a part of it is missing"):
        classes(tmp_path / f"a.{ending}.002")
    joined = tmp_path / "joined"
    joined.write_bytes(whole)
    assert classes(joined) == {"cat": 4, "dog": 4}


@pytest.mark.parametrize("packing", ["bz2", "xz"])
def test_bz2_and_xz_are_read_also_of_several_members_and_their_damage_is_named(tmp_path, packing, monkeypatch):
    pack = {"bz2": bz2.compress, "xz": lzma.compress}[packing]
    tar = write_tar(tmp_path / "a.tar", pairs(count=20)).read_bytes()
    whole = pack(tar[:70_000]) + pack(b"") + pack(tar[70_000:])
    path = tmp_path / f"a.tar.{packing}"
    path.write_bytes(whole)
    found, container = catalogue(path)
    assert [len(table) for table in found.splits.values()] == [40, 40]
    assert bytes(container.read(next(container.members()))) == JPEG
    for damaged, words in ((whole[:-200], "is cut short"), (whole[:2000] + b"\x55" * 50 + whole[2050:], "is damaged"),
                           (whole + b"more", "is (damaged|cut short)")):  # fmt: skip
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=words):
            catalogue(path)
    monkeypatch.setattr("trainyard.prepare.archives.stream._ALLOWANCE", 0)
    path.write_bytes(pack(bytes(1 << 20)))
    with pytest.raises(UserError, match="unpacks to more than 100 times its"):
        list(
            decompress(
                iter([memoryview(path.read_bytes())]), PathSource(path, Traffic()), packing.replace("bz", "bzip")
            )
        )


# Random names

_LETTERS = "abcXYZ 0_-éÉßøñåİıſΩКйが神狗鸟à\u0301\u0308\u3099ﬁ²💡'\"%&()[]{}*?!\\"


def random_name(chance):
    name = "".join(chance.choices(_LETTERS, k=chance.randint(1, 8))).strip(" \\")
    raw = bytes(chance.choices(range(0x80, 0x100), k=chance.randint(1, 6))).decode("utf-8", "surrogateescape")
    return raw if chance.random() < 0.15 else name


def outcome(path, layout):
    """The classes, or that names which are not UTF-8 were refused."""
    try:
        return classes(path, layout)
    except UserError as error:
        return re.findall("are not UTF-8", str(error)) or [str(error)]


@pytest.mark.parametrize("seed", range(12))
def test_random_names_give_as_many_classes_as_there_are_and_the_same_from_any_container(tmp_path, seed):
    chance = random.Random(seed)
    layout, count = chance.choice([("imagefolder", 4), ("folders", 60)])
    names = {name for _ in range(chance.randint(2, 8)) if (name := random_name(chance))}
    members = pairs(names=names) if layout == "imagefolder" else undivided(names, count)
    found = [
        outcome(write_folder(tmp_path / "a", members), layout),
        outcome(write_tar(tmp_path / "a.tar", members), layout),
        outcome(write_tar(tmp_path / "a.tgz", members, "w:gz", tarfile.GNU_FORMAT), layout),
    ]
    forms = Counter(unicodedata.normalize("NFC", name) for name in names)
    if all(re.fullmatch("[^\udc80-\udcff]*", name) for name in names):
        found.append(outcome(write_zip(tmp_path / "a.zip", members), layout))
        assert found == [{name: count * forms[name] for name in forms}] * 4
    else:
        assert found == [["are not UTF-8"]] * 3
        assert len(classes(raw_zip(tmp_path / "a.zip", members), layout)) == len(forms)
