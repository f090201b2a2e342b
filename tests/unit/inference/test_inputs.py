"""Which pictures evaluation and prediction take from a folder or zip: what a preparation takes, by the same rules."""

import errno
import unicodedata
from pathlib import Path

import pytest
from faulty_storage import failing

from tests.unit.prepare.make_archives import picture, write_folder, write_zip
from trainyard.core.exits import Exit, UserError
from trainyard.core.storage import StorageError
from trainyard.inference.classes import match_labels
from trainyard.inference.command import may_be_the_size, ready_to_write
from trainyard.inference.inputs import Images, open_images
from trainyard.models.described import Description

JPEG = picture(1)
GBK = [word.encode("gbk").decode("utf-8", "surrogateescape") for word in ("鸟类", "狗狗", "牛马")]


def knows(*classes: str) -> Description:
    return Description(
        "resnet18", classes, classes, 32, 32, 32, (0, 0, 0), (1, 1, 1), "bilinear", "fp32", None, "native", 4
    )


def names(pictures: Images) -> list[str]:
    return [pictures.name(i) for i in range(pictures.count)]


def test_classes_in_gbk_are_refused_by_evaluation_and_no_matter_to_prediction(tmp_path: Path) -> None:
    write_folder(tmp_path / "gbk", {f"{name}/{i}.jpg": JPEG for name in GBK for i in range(2)})
    found = open_images(str(tmp_path / "gbk"), "", ())
    assert len(found.keys) == 3
    assert all(name.isprintable() and name.encode() for name in names(found))
    with pytest.raises(UserError, match=r"6 names in .* are not UTF-8 .*convmv -r -f gbk -t utf8 --notest .*gbk"):
        match_labels(found, knows("a", "b", "c"))


def test_noise_is_none_of_the_pictures_and_what_looks_like_one_is(tmp_path: Path) -> None:
    data = {"cat/1.jpg": JPEG, "cat/2.jfif": JPEG, "cat/3": JPEG, "dog/x.jpg?w=300": JPEG, "dog/4.webp": b"RIFF"}
    noise = [
        "cat/@eaDir/1.jpg/THUMB.jpg",
        "cat/._1.jpg",
        "__MACOSX/cat/._1.jpg",
        ".Trash-1000/files/5.jpg",
        "dog/desktop.ini",
    ]
    for path in (write_folder(tmp_path / "a", data | dict.fromkeys([*noise, "cat/note.txt"], JPEG)),
                 write_zip(tmp_path / "a.zip", data | dict.fromkeys([*noise, "cat/note.txt"], JPEG))):  # fmt: skip
        found = open_images(str(path), "", ())
        assert (names(found), list(found.keys)) == (sorted(data), ["cat", "dog"])
        assert len(found.remarks) == 1
        assert "hidden and service files left out: " in found.remarks[0]


def test_images_that_are_not_decoded_are_listed_whatever_they_are_called(tmp_path: Path) -> None:
    """So each of them is named as one that cannot be read; `README` is none."""
    data = {"cat/1.jpg": JPEG, "dog/2": b"RIFF\x10\0\0\0WEBPVP8 ", "dog/3.ppm": b"P6 1 1 255 abc"}
    data["dog/4"] = b"\0\0\0\x18ftypheic"
    for path in (write_folder(tmp_path / "a", data | {"README": b"x"}),
                 write_zip(tmp_path / "a.zip", data | {"README": b"x"})):  # fmt: skip
        assert names(open_images(str(path), "", ())) == sorted(data)


def test_unicode_forms_of_a_class_are_one_and_a_picture_keeps_its_name(tmp_path: Path) -> None:
    apart = unicodedata.normalize("NFD", "Café")
    write_folder(tmp_path / "a", {f"{apart}/{apart}.jpg": JPEG, "Thé/1.jpg": JPEG})
    found = open_images(str(tmp_path / "a"), "", ())
    assert names(found) == [f"{apart}/{apart}.jpg", "Thé/1.jpg"]
    assert (tmp_path / "a" / names(found)[0]).is_file()
    for known in (knows("Café", "Thé"), knows(apart, "Thé")):
        assert list(match_labels(found, known)[0]) == [0, 1]


@pytest.mark.parametrize("known", [(), ("bus", "val")])
def test_a_class_may_be_called_val(tmp_path: Path, known: tuple[str, ...]) -> None:
    write_folder(tmp_path / "a", {f"{name}/{i}.jpg": JPEG for name in ("bus", "val") for i in range(2)})
    found = open_images(str(tmp_path / "a"), "", known)
    assert (found.count, list(found.keys)) == (4, ["bus", "val"])


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_val_has_three_names_as_in_a_preparation(tmp_path: Path, val: str) -> None:
    write_folder(tmp_path / "a", {f"{split}/{name}/1.jpg": JPEG for split in ("train", val) for name in ("cat", "dog")})
    assert names(open_images(str(tmp_path / "a"), "", ())) == [f"{val}/cat/1.jpg", f"{val}/dog/1.jpg"]
    assert open_images(str(tmp_path / "a"), "train", ()).count == 2


def test_a_data_set_in_itself_is_not_measured_twice(tmp_path: Path) -> None:
    images = {f"{split}/{klass}/1.jpg": JPEG for split in ("train", "val") for klass in ("cat", "dog")}
    write_folder(tmp_path / "chest", images | {f"chest/{name}": content for name, content in images.items()})
    with pytest.raises(UserError, match=r"holds val twice, one in the other: in chest and in the top folder; give"):
        open_images(str(tmp_path / "chest"), "", ())
    assert open_images(str(tmp_path / "chest/chest"), "", ()).count == 2


def test_links_to_nothing_and_what_is_no_zip_are_named(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", {"cat/1.jpg": JPEG})
    (root / "README").symlink_to("nowhere")
    found = open_images(str(root), "", ())
    assert (found.count, found.remarks) == (1, ["links to nothing left out: 1"])
    (root / "cat" / "2.jpg").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"1 links to images that are not there \(first cat/2.jpg\)"):
        open_images(str(root), "", ())
    (root / "cat" / "2.jpg").unlink()
    for name in ("000", "notes.txt"):
        (root / "cat" / name).symlink_to("nowhere")
    with pytest.raises(UserError, match=r"1 links to images that are not there \(first cat/000\)"):
        open_images(str(root), "", ())
    (tmp_path / "a.zip").write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(600))
    with pytest.raises(UserError, match=r"a\.zip is a 7z archive; unpack it"):
        open_images(str(tmp_path / "a.zip"), "", ())


def test_a_folder_of_results_whose_storage_fails_ends_with_the_code_that_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = failing(monkeypatch, "results")
    faults += [errno.EIO] * 2
    ready_to_write(tmp_path / "results")  # it answers at the third try
    assert faults == []
    assert not (tmp_path / "results").exists()
    monkeypatch.setenv("TRAINYARD_STORAGE_SECONDS", "0.2")
    faults += [errno.EIO] * 10_000
    with pytest.raises(StorageError, match="the storage does not answer") as caught:
        ready_to_write(tmp_path / "results")
    assert caught.value.code == Exit.STORAGE
    del faults[:]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"--out .*/file cannot be written"):
        ready_to_write(tmp_path / "file")


def test_a_lost_peer_is_not_blamed_on_the_size_of_images() -> None:
    assert may_be_the_size(RuntimeError("Given input size: (512x0x0). Output size is too small"))
    assert not may_be_the_size(RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer"))
    assert not may_be_the_size(RuntimeError("CUDA error: uncorrectable ECC error encountered"))
