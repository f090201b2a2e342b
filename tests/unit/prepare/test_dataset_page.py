"""The page about a prepared dataset: what it finds in a folder whose faults are known, and how it is written."""

import html
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import documents
from tests.unit.data import pngs
from tests.unit.prepare.make_archives import picture
from tests.util import browser
from trainyard.core.exits import UserError
from trainyard.prepare.command import main
from trainyard.report import dataset
from trainyard.report.dataset_survey import survey

TURNED = 6  # EXIF: shown after a quarter turn
HOW = {"layout": "imagefolder", "undecodable": "leave_out", "decode": "all", "seekable": "false"}


def encoded(width: int, height: int, mode: str = "RGB", blank: bool = False, **how: Any) -> bytes:
    """A JPEG of noise, or of one colour."""
    noise = np.random.Generator(np.random.Philox(key=width * height)).integers(0, 256, (height, width, 3), np.uint8)
    found = Image.new("RGB", (width, height), "navy") if blank else Image.fromarray(noise)
    buffer = io.BytesIO()
    found.convert(mode).save(buffer, "JPEG", quality=90, **how)
    return buffer.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = TURNED
    return encoded(49, 48, exif=exif)


def prepare(pictures: Path, out: Path, **how: str) -> None:
    sets = {"source.kind": "path", "source.path": pictures, "out": out, **how}
    assert main(["build", *(word for key, value in sets.items() for word in ("--set", f"{key}={value}"))]) == 0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder with one fault of each kind."""
    folder = tmp_path_factory.mktemp("faulty")
    files = {f"train/{name}/{i}.jpg": picture(100 * j + i) for j, name in enumerate(("ash", "elm")) for i in range(20)}
    files |= {f"val/ash/{i}.jpg": picture(1000 + i) for i in range(5)}
    files |= {
        "val/ash/seen.jpg": picture(3),  # train/ash/3.jpg
        "train/elm/twice.jpg": picture(5),  # train/ash/5.jpg, of another class
        "train/ash/again.jpg": picture(7),  # train/ash/7.jpg
        "train/oak/strip.jpg": encoded(48, 200),
        "train/oak/tiny.jpg": encoded(10, 11),
        "train/oak/blank.jpg": encoded(600, 600, blank=True),
        "train/elm/turned.jpg": turned(),
        "train/elm/grey.jpg": encoded(50, 48, "L"),
        "train/elm/print.jpg": encoded(51, 48, "CMYK"),
        "train/elm/broken.jpg": picture(8)[:100],
    }
    for name, content in files.items():
        (folder / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "pictures" / name).write_bytes(content)
    prepare(folder / "pictures", folder / "made", **HOW)
    return folder / "made"


def test_every_fault_is_found_and_nothing_else(root: Path) -> None:
    found = survey(root)
    assert {split: counts.tolist() for split, counts in found.counts.items()} == {
        "train": [21, 24, 3],
        "val": [6, 0, 0],
    }
    groups = [sorted((one.split, found.names[one.label]) for one in group) for group in found.copies]
    assert sorted(groups) == [
        [("train", "ash"), ("train", "ash")],
        [("train", "ash"), ("train", "elm")],
        [("train", "ash"), ("val", "ash")],
    ]
    assert sorted(text for _, text in found.odd) == [
        "4.2 times as long as wide",
        "CMYK, converted",
        "grey",
        "its EXIF says that it is turned; training shows it as stored",
        "much smaller than the others",
        "nearly empty (few bytes for its size)",
    ]
    assert dataset.notices(found) == [
        "1 image of train is in val too, byte for byte: the model will look better than it is.",
        "1 image is in more than one class.",
        "1 image is there more than once in one class and split.",
        "2 of 3 classes have no image in val: elm, oak.",
        "1 image could not be decoded and was left out.",
    ]


def test_classes_with_nearly_the_same_name_are_named_in_the_log_and_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, key in enumerate(("cat", "Cat", "emu", "dog ", "dog", "c")):
        for split in ("train", "val"):
            (tmp_path / "pictures" / split / key).mkdir(parents=True)
            (tmp_path / "pictures" / split / key / "1.jpg").write_bytes(picture(2 * number + (split == "val")))
    people = "{cat: Felis, c: Felis}"  # names for people may be equal
    prepare(tmp_path / "pictures", tmp_path / "made", layout="imagefolder", seekable="false", class_names=people)
    said = "Classes stay apart whose names are nearly the same: 'Cat' and 'cat'; 'dog' and 'dog '."
    assert said in capsys.readouterr().err.splitlines()
    assert html.escape(said) in (tmp_path / "made" / dataset.FILE).read_text()


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["1", "01", "1.0", "10", "1.5", "15", "100", "0"], [["1", "01", "1.0"]]),
        (["cat.", "cat", "cat\u200b", "cät"], [["cat.", "cat", "cat\u200b"]]),
        (["class_1", "class 01", "class_11"], [["class_1", "class 01"]]),
        (["v1.2", "v12", "n01440764", "n01443537", "a.b", "ab"], [["a.b", "ab"]]),
        (["❤", "❤\ufe0f", "cafe\u0301", "café"], [["❤", "❤\ufe0f"], ["cafe\u0301", "café"]]),
    ],
)
def test_names_that_people_or_programs_take_for_the_same(names: list[str], groups: list[list[str]]) -> None:
    assert dataset.near_names(names) == groups


def test_a_single_class_and_one_of_missing_labels_are_said(tmp_path: Path) -> None:
    """As of images that all lie in a folder `images`, and of a table whose labels pandas did not find."""
    for key in ("images", "NaN"):
        for split in ("train", "val"):
            (tmp_path / "pictures" / split / key).mkdir(parents=True)
            (tmp_path / "pictures" / split / key / "1.jpg").write_bytes(encoded(40 + len(key), 30 + len(split)))
        prepare(tmp_path / "pictures", tmp_path / key, layout="imagefolder")
    alone = "There is one class alone, 'images', and nothing to tell it from: "
    assert any(text.startswith(alone) for text in dataset.notices(survey(tmp_path / "images")))
    assert "Class 'NaN' may be images whose label is missing." in dataset.notices(survey(tmp_path / "NaN"))


def test_preparation_leaves_the_page_and_the_command_writes_the_same(root: Path, tmp_path: Path) -> None:
    page = (root / dataset.FILE).read_text()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "trees").symlink_to(root)
    documents.run("dataset.md", "trainyard prepare look", cwd=tmp_path)
    assert (tmp_path / "trees.html").read_text() == page
    for text in ("Dataset made", "train/elm/broken.jpg", "train 0", "52 JPEG, RGB; 1 JPEG, L; 1 JPEG, CMYK"):
        assert text in page, text


def test_a_missing_page_is_written_by_the_next_preparation(root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / root.name)
    page = (copy / dataset.FILE).read_text()
    (copy / dataset.FILE).unlink()
    prepare(root.parent / "pictures", copy, **HOW)
    assert (copy / dataset.FILE).read_text() == page


def test_an_unwritable_page_costs_nothing(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written: Is a directory; name another file with --out"):
        main(["look", str(root), "--out", str(tmp_path)])
    with pytest.raises(UserError, match=r"manifest.json is missing"):
        main(["look", str(tmp_path)])


def test_pictures_that_nothing_checked_are_passed_over(tmp_path: Path) -> None:
    """One has nothing behind its header; one without a header that can be read is named before."""
    (folder := tmp_path / "pictures" / "train" / "ash").mkdir(parents=True)
    for i, content in enumerate((picture(1), picture(2)[:60], picture(3)[:700])):
        (folder / f"{i}.jpg").write_bytes(content)
    (tmp_path / "pictures" / "val" / "ash").mkdir(parents=True)
    (tmp_path / "pictures" / "val" / "ash" / "0.jpg").write_bytes(picture(4))
    unchecked = {"layout": "imagefolder", "decode": "none", "seekable": "false"}
    with pytest.raises(UserError, match=r"1 images of .* cannot be decoded: train/ash/1\.jpg"):
        prepare(tmp_path / "pictures", tmp_path / "made", **unchecked)
    (folder / "1.jpg").unlink()
    prepare(tmp_path / "pictures", tmp_path / "made", **unchecked)
    page = (tmp_path / "made" / dataset.FILE).read_text()
    assert "3 JPEG, RGB" in page
    assert page.count("<figure>") == 2


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_the_page_fits_phones_and_desktops(root: Path, tmp_path: Path, width: int, dark: bool) -> None:
    shown = browser.show((root / dataset.FILE).read_text(), tmp_path, width, dark)
    assert shown.scroll == shown.inner == width
    assert shown.images >= 40
    assert (shown.shot.mean() < 100) == dark


def test_many_classes_are_folded_and_one_of_each_is_shown(tmp_path: Path) -> None:
    for name in range(60):
        (folder := tmp_path / "pictures" / f"class-{name:02d}").mkdir(parents=True)
        for i in range(10):
            (folder / f"{i}.jpg").write_bytes(picture(name * 10 + i))
    prepare(tmp_path / "pictures", tmp_path / "made", layout="folders")
    page = (tmp_path / "made" / dataset.FILE).read_text()
    assert "All 60 classes" in page
    assert page.count("<figure>") == dataset.MOST_SHOWN
    assert "No two images have the same content." in page


def test_kinds_of_pixels_that_training_changes_are_odd(tmp_path: Path) -> None:
    """16 bits, alpha, transparent colours, palettes, black and white; broken EXIF is no reason to miss a picture."""
    generator = np.random.Generator(np.random.Philox(key=4))
    files = {f"train/ash/{i}.jpg": picture(i) for i in range(8)} | {"val/ash/0.jpg": picture(50)}
    kinds = {"deep": (pngs.GREY, 16), "colours": (pngs.RGB, 16), "faded": (pngs.GREY_ALPHA, 8), "ink": (pngs.GREY, 1)}
    for name, kind in kinds.items():
        exif = pngs.chunk(b"eXIf", b"MM\0*\0\0\0\xff")
        files[f"train/ash/{name}.png"] = pngs.png(pngs.drawn(generator, 48, 48, kind), kind, before=exif)
    for name, more in (("palette", b""), ("holes", pngs.chunk(b"tRNS", bytes(256)))):
        samples = pngs.drawn(generator, 48, 48, (pngs.PALETTE, 8))
        before = pngs.chunk(b"PLTE", generator.bytes(768)) + more
        files[f"train/ash/{name}.png"] = pngs.png(samples, (pngs.PALETTE, 8), before=before)
    for name, content in files.items():
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pictures" / name).write_bytes(content)
    prepare(tmp_path / "pictures", tmp_path / "made", layout="imagefolder")
    found = survey(tmp_path / "made")
    assert len(found.headers) == len(files)
    assert sorted(text for _, text in found.odd) == [
        "16 bits; training uses the higher 8",
        "16 bits; training uses the higher 8",
        "mode 1, converted",
        "mode P, converted",
        "transparent in parts; training sees the colours there",
        "transparent in parts; training sees the colours there",
    ]
    assert "2 16 bits; training uses the higher 8" in (tmp_path / "made" / dataset.FILE).read_text()


def test_files_that_are_no_data_are_counted(tmp_path: Path) -> None:
    files = {f"{kind}/{i}.jpg": picture(i + 50 * (kind == "elm")) for kind in ("ash", "elm") for i in range(4)}
    files |= {f"ash/._{i}.jpg": b"x" for i in range(3)} | {
        "elm/.DS_Store": b"x",
        "notes/a.xml": b"<a/>",
        "read.me": b"x",
    }
    for name, content in files.items():
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    prepare(tmp_path / "pictures", tmp_path / "made", layout="folders")
    page = (tmp_path / "made" / dataset.FILE).read_text()
    assert "Files that are no data" in page
    for cells in ("<td>._*</td><td class=\"num\">3</td>", "<td>.DS_Store</td><td class=\"num\">1</td>",
                  "<td>.xml</td><td class=\"num\">1</td>"):  # fmt: skip
        assert cells in page, cells
    assert page == dataset.render(survey(tmp_path / "made")), "also without the source"
    (tmp_path / "clean").mkdir()
    shutil.copytree(tmp_path / "pictures/ash", tmp_path / "clean/ash", ignore=shutil.ignore_patterns("._*"))
    prepare(tmp_path / "clean", tmp_path / "clean-made", layout="folders")
    assert "Files that are no data" not in (tmp_path / "clean-made" / dataset.FILE).read_text()
