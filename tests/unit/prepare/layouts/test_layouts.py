import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.unit.prepare.make_archives import (
    DATA,
    SYNSETS,
    config,
    imagenet,
    picture,
    pictures,
    write_folder,
    write_tar,
    write_zip,
)
from trainyard.core.exits import UserError
from trainyard.prepare.build import build
from trainyard.prepare.layouts.base import OutOfPlaceError
from trainyard.prepare.layouts.table import TableLayout
from trainyard.prepare.settings import Table
from trainyard.shards import manifest as manifests
from trainyard.shards.reader import open_split


def attempt(tmp_path, members, **settings):
    return build(config(write_zip(tmp_path / "a.zip", members), tmp_path / "out", **settings))


@pytest.mark.parametrize("name", ["LOC_val_solution.csv", "LOC_synset_mapping.txt"])
def test_a_missing_table_is_named(tmp_path, name):
    members = imagenet(9, 6)
    del members[name]
    with pytest.raises(UserError, match=f"has no {name}"):
        attempt(tmp_path, members)


def test_a_validation_picture_without_label_or_a_label_without_picture_is_named(tmp_path):
    with pytest.raises(UserError, match=r"image extra of .* has no label"):
        attempt(tmp_path, {**imagenet(9, 6), f"{DATA}/val/extra.JPEG": picture(5)})
    members = imagenet(9, 6)
    del members[f"{DATA}/val/val_3.JPEG"]
    with pytest.raises(UserError, match="lacks validation image val_3"):
        attempt(tmp_path, members)


def test_a_validation_picture_with_two_classes_is_named(tmp_path):
    members = imagenet(9, 6)
    members["LOC_val_solution.csv"] += f"val_3,{SYNSETS[0]} 1 2 3 4\n".encode()  # once more, with the same class
    attempt(tmp_path, members)
    broken = {"LOC_val_solution.csv": members["LOC_val_solution.csv"] + b"val_4,n01 1 2 3 4, n02 1 2 3 4\n"}
    (tmp_path / "fields").mkdir()
    with pytest.raises(UserError, match="is not as expected at line 9"):
        attempt(tmp_path / "fields", members | broken)
    members["LOC_val_solution.csv"] += f"val_3,{SYNSETS[1]} 1 2 3 4\n".encode()
    (tmp_path / "again").mkdir()
    with pytest.raises(UserError, match=rf"gives val_3 two classes, {SYNSETS[0]} and {SYNSETS[1]} at line 9"):
        attempt(tmp_path / "again", members)


def without(members, *parts):
    return {name: content for name, content in members.items() if not any(part in name for part in parts)}


def sorted_val(members):
    """The same members with the validation images in folders of their classes."""
    named = {f"{DATA}/val/val_{i}.JPEG": f"{DATA}/val/{SYNSETS[i % 3]}/val_{i}.JPEG" for i in range(6)}
    return {named.get(name, name): content for name, content in without(members, "LOC_val_solution.csv").items()}


@pytest.mark.parametrize("how", ["train lacks it", "val lacks it too", "val in folders", "named under 'skip'"])
def test_some_of_imagenets_classes_are_those_of_train_and_the_others_images_are_counted(tmp_path, capsys, how):
    members = imagenet(9, 6) if "skip" in how else without(imagenet(9, 6), f"train/{SYNSETS[1]}")
    if how == "val lacks it too":
        members = without(members, "/val_1.", "/val_4.")
    settings = {"skip": [f"*/train/{SYNSETS[1]}/*"]} if "skip" in how else {}
    attempt(tmp_path, sorted_val(members) if "folders" in how else members, **settings)
    shards = open_split(tmp_path / "out", "val")
    left = sorted({SYNSETS[0], SYNSETS[2]})
    assert shards.class_keys == left
    assert {shards.read(i): shards.class_keys[shards.labels[i]] for i in range(4)} == {
        picture(1000 + i): SYNSETS[i % 3] for i in (0, 2, 3, 5)
    }
    assert pictures(tmp_path / "out", "train").keys() == {picture(i) for i in range(9) if i % 3 != 1}
    said = capsys.readouterr().err
    assert (
        f"the classes are the 2 that have training images; LOC_synset_mapping.txt names 1 more (first {SYNSETS[1]}"
        in said
    )
    counted = "validation images left out, since train lacks their classes"
    ignored = manifests.load(tmp_path / "out").ignored or {}
    warned = (
        f"1 of 3 classes that the archive names have no training images (first {SYNSETS[1]}): unpack it again, unless "
        "you chose 2 of its classes."
    )
    page = (tmp_path / "out/dataset.html").read_text()
    if "skip" in how:  # which says that it is meant
        assert warned not in said + page
    else:
        assert f"{warned}\n" in said.partition(" samples, 2 classes, ")[2], "it is the end that people read"
        assert warned in page
    assert manifests.WITHOUT_TRAINING not in page, "which is no file that is no data"
    if how == "val lacks it too":
        assert counted not in said
        assert counted not in ignored
    else:
        assert f"{counted}: 2\n" in said
        assert ignored[counted] == {"image": 2}
        assert counted in page


def test_a_validation_image_that_a_subset_of_imagenet_needs_is_missed(tmp_path):
    members = without(imagenet(9, 6), f"train/{SYNSETS[1]}", "/val_3.")
    with pytest.raises(UserError, match="lacks validation image val_3"):
        attempt(tmp_path, members)


def test_validation_images_of_a_class_that_imagenet_does_not_know_are_an_error(tmp_path):
    members = sorted_val(imagenet(9, 6))
    with pytest.raises(UserError, match=r"are of class cat, which has no training images and no line in LOC_synset"):
        attempt(tmp_path, {**members, f"{DATA}/val/cat/1.JPEG": picture(7)})
    with pytest.raises(UserError, match=rf"both in folders of classes \({SYNSETS[1]}/\) and outside .* \(val_9\)"):
        build(config(write_zip(tmp_path / "b.zip", {**members, f"{DATA}/val/val_9.JPEG": picture(8)}), tmp_path / "b"))


def test_a_table_of_imagenet_that_is_no_csv_is_named(tmp_path):
    rows = b"ImageId,PredictionString\nval_0," + b"x" * 140_000 + b"\n"
    with pytest.raises(UserError, match=r"LOC_val_solution.csv of .* is not sound CSV at line \d: field larger than"):
        attempt(tmp_path, {**imagenet(9, 6), "LOC_val_solution.csv": rows})


def test_a_picture_in_no_known_folder_is_not_lost_silently(tmp_path):
    with pytest.raises(UserError, match=r"trian/x/y.JPEG .* has no place in the layout.*'skip'"):
        attempt(tmp_path, {**imagenet(9, 6), f"{DATA}/trian/x/y.JPEG": picture(5)})


def test_a_left_out_validation_picture_is_not_missed(tmp_path):
    attempt(tmp_path, imagenet(9, 6), skip=[f"{DATA}/val/val_3.JPEG"])
    assert len(open_split(tmp_path / "out", "val")) == 5


def test_a_common_folder_around_the_layout_does_not_matter(tmp_path):
    attempt(tmp_path, {f"some/folder/{name}": content for name, content in imagenet(9, 6).items()})
    assert len(open_split(tmp_path / "out", "train")) == 9


def test_the_wrong_layout_is_named(tmp_path):
    with pytest.raises(UserError, match="layout"):
        attempt(tmp_path, {"train/cat/1.jpg": picture(1), "val/cat/2.jpg": picture(2)})


def test_imagefolder(tmp_path):
    members = {f"pets/{split}/{kind}/{i}.jpg": picture(i + 10 * (kind == "dog") + 100 * (split == "val"))
               for split in ("train", "val") for kind in ("dog", "cat") for i in range(3)}  # fmt: skip
    members |= {"pets/README.txt": b"hello", "pets/train/.DS_Store": b"x", "pets/test/1.jpg": picture(500)}
    attempt(tmp_path, members, layout="imagefolder", decode="all")
    shards = open_split(tmp_path / "out", "val")
    assert shards.class_names == ["cat", "dog"]
    assert {shards.read(i): shards.labels[i] for i in range(6)} == {
        picture(i + 10 * label + 100): label for i in range(3) for label in (0, 1)
    }


def split_folders(root, members, **settings):
    """Prepare folders of classes; the images of both splits with their classes."""
    out = root.with_name(f"{root.name}-prepared")
    build(config(write_folder(root, members), out, **{"layout": "folders", "val_fraction": 0.2, **settings}))
    return [pictures(out, split) for split in ("train", "val")]


@pytest.mark.parametrize(("count", "fraction", "val"), [
    (2, 0.01, 1), (10, 0.01, 1), (40, 0.1, 4), (45, 0.1, 4), (3, 0.9, 2), (2, 0.99, 1),
])  # fmt: skip
def test_each_class_is_divided_alike_whatever_its_size(tmp_path, count, fraction, val):
    members = {f"{kind}/{i}.jpg": picture(i + 100 * (kind == "dog")) for kind in ("cat", "dog") for i in range(count)}
    train, validation = split_folders(tmp_path / "a", {**members, "emu/1.jpg": picture(999)}, val_fraction=fraction)
    assert Counter(validation.values()) == {"cat": val, "dog": val}
    assert Counter(train.values()) == {"cat": count - val, "dog": count - val, "emu": 1}, "a single image is trained on"


def test_another_fraction_is_another_dataset(tmp_path):
    members = {f"{kind}/{i}.jpg": picture(i) for kind in ("cat", "dog") for i in range(9)}
    split_folders(tmp_path / "a", members)
    with pytest.raises(UserError, match=r"val_fraction was 0.2 and is 0.5; give the dataset another name"):
        split_folders(tmp_path / "a", members, val_fraction=0.5)
    # what an earlier version prepared said neither how it drew nor the fraction, and stays valid
    path = tmp_path / "a-prepared" / "manifest.json"
    told = manifests.load(path.parent)
    settings = {key: value for key, value in told.settings.items() if key not in ("val_fraction", "drawn")}
    path.write_text(replace(told, settings=settings).to_json())
    split_folders(tmp_path / "a", members, val_fraction=0.5)


def test_folders_without_splits(tmp_path):
    members = {
        f"pets/{kind}/{i}.jpg": picture(i + 1000 * (kind == "dog")) for kind in ("dog", "cat") for i in range(60)
    }
    noise = {"pets/README.txt": b"hello", "pets/cat/.DS_Store": b"x", "__MACOSX/pets/cat/1.jpg": b"x"}
    attempt(tmp_path, {**members, **noise}, layout="folders", val_fraction=0.2)
    found = [pictures(tmp_path / "out", split) for split in ("train", "val")]
    assert {**found[0], **found[1]} == {content: name.split("/")[1] for name, content in members.items()}
    assert Counter(found[1].values()) == {"cat": 12, "dog": 12}
    # a class's split is the same in whatever order its images come, whatever is around them, and with more classes
    moved = {name.removeprefix("pets/"): members[name] for name in sorted(members, reverse=True)}
    others = {f"emu/{i}.jpg": picture(3000 + i) for i in range(7)}
    again = split_folders(tmp_path / "moved", {**moved, **others})
    assert found[1].items() <= again[1].items()
    assert found[0].items() <= again[0].items()
    assert Counter(again[1].values()) == {"cat": 12, "dog": 12, "emu": 1}
    # an image that is added moves at most one other of its class
    more = {f"cat/more{i}.jpg": picture(2000 + i) for i in range(5)}
    grown = split_folders(tmp_path / "grown", {**moved, **more})
    changed = [content for content in found[0] if content in grown[1]] + [c for c in found[1] if c in grown[0]]
    assert len(changed) <= 5
    assert all(found[0].get(content, found[1].get(content)) == "cat" for content in changed)
    assert Counter(grown[1].values()) == {"cat": 13, "dog": 12}
    build(config(write_zip(tmp_path / "b.zip", members), tmp_path / "b", layout="folders", val_fraction=0.2, seed=1))
    assert pictures(tmp_path / "b", "val").keys() != found[1].keys()


@pytest.mark.parametrize(
    ("members", "settings", "message"),
    [
        ({"a/train/cat/1.jpg": picture(1)}, {}, "train/cat/1.jpg .* no place in the layout"),
        ({"1.jpg": picture(1)}, {}, "1.jpg .* no place in the layout"),
        (
            {f"{name}/1.jpg": picture(i) for i, name in enumerate("abcdef")},
            {"val_fraction": 0.5},
            "no images for 'val'",
        ),
        ({"cat/1.jpg": picture(1)}, {"val_fraction": 0.001}, "no images for 'val'"),
    ],
)
def test_folders_that_cannot_be_divided(tmp_path, members, settings, message):
    with pytest.raises(UserError, match=message):
        attempt(tmp_path, members, layout="folders", **settings)


def test_imagefolder_with_a_class_only_in_val(tmp_path):
    members = {"train/cat/1.jpg": picture(1), "val/cat/2.jpg": picture(2), "val/dog/2.jpg": picture(3)}
    with pytest.raises(UserError, match="class 'dog' in val but not in train"):
        attempt(tmp_path, members, layout="imagefolder")


def test_a_png_keeps_its_bytes_and_says_what_it_is(tmp_path):
    import io
    import tarfile

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "PNG")
    png = buffer.getvalue()
    attempt(tmp_path, {**imagenet(9, 6), f"{DATA}/train/{SYNSETS[0]}/odd.JPEG": png}, decode="all")
    with tarfile.open(tmp_path / "out/train/shard-00000.tar") as tar:
        names = [name for name in tar.getnames() if name.endswith(".png")]
        assert len(names) == 1
        assert tar.extractfile(names[0]).read() == png


ROWS = [(f"set{i % 2}/{i}", "cat" if i % 3 else "dog") for i in range(30)]
TABLE = {"file": "labels.csv", "folder": "images", "suffix": ".jpg", "path_column": "id", "label_column": "breed"}


def table(rows=ROWS, header="id,breed", where="kaggle/"):
    lines = "".join(",".join(row) + "\r\n" for row in rows)
    images = {f"{where}images/{row[0]}.jpg": picture(i) for i, row in enumerate(ROWS)}
    return {**images, f"{where}labels.csv": f"\ufeff{header}\r\n{lines}".encode(), f"{where}readme.md": b"x"}


def test_a_csv_file_gives_classes_and_a_seeded_split(tmp_path):
    attempt(tmp_path, table(), layout="csv", csv={**TABLE, "val_fraction": 0.2})
    train, val = (pictures(tmp_path / "out", split) for split in ("train", "val"))
    assert (len(train), len(val)) == (24, 6)
    assert sorted(val.values()) == ["cat"] * 4 + ["dog"] * 2
    assert train | val == {picture(i): label for i, (_, label) in enumerate(ROWS)}
    # Which pictures become val does not depend on the order of rows, but on the seed
    for name, rows, seed in (("turned", ROWS[::-1], 0), ("seeded", ROWS, 1)):
        path = write_zip(tmp_path / f"{name}.zip", table(rows))
        build(config(path, tmp_path / name, layout="csv", csv={**TABLE, "val_fraction": 0.2}, seed=seed))
    assert pictures(tmp_path / "turned", "val") == val
    assert pictures(tmp_path / "seeded", "val") != val


def test_a_csv_file_with_a_split_column(tmp_path):
    splits = ["train", "val", "test"]
    rows = [(*row, splits[i // 2 % 3]) for i, row in enumerate(ROWS)]
    settings = {**TABLE, "split_column": "part", "ignored_splits": ["test"]}
    attempt(tmp_path, table(rows, "id,breed,part"), layout="csv", csv=settings)
    for split in ("train", "val"):
        found = pictures(tmp_path / "out", split)
        assert found == {picture(i): row[1] for i, row in enumerate(rows) if row[2] == split}
    with pytest.raises(UserError, match=r"split 'test', which is neither train nor val.*csv.ignored_splits"):
        build(config(tmp_path / "a.zip", tmp_path / "b", layout="csv", csv={**settings, "ignored_splits": []}))


def test_a_csv_file_in_a_folder_and_in_a_tar(tmp_path):
    for path in (write_folder(tmp_path / "folder", table()), write_tar(tmp_path / "a.tgz", table(where=""), "w:gz")):
        build(config(path, tmp_path / f"{path.name}-out", layout="csv", csv=TABLE))
        found = [pictures(tmp_path / f"{path.name}-out", split) for split in ("train", "val")]
        assert found[0] | found[1] == {picture(i): label for i, (_, label) in enumerate(ROWS)}


def test_spaces_around_a_csv_files_fields_and_empty_ones_at_the_end_are_nothing(tmp_path):
    rows = [(f" {path}", f" {label} ", "", " ") for path, label in ROWS]
    attempt(tmp_path, table(rows, "id , breed"), layout="csv", csv=TABLE)
    found = [pictures(tmp_path / "out", split) for split in ("train", "val")]
    assert found[0] | found[1] == {picture(i): label for i, (_, label) in enumerate(ROWS)}


def test_leading_zeros_that_a_spreadsheet_took_away_are_told():
    layout = TableLayout(Table(**TABLE), seed=0)
    layout.learn("labels.csv", b"id,breed\n7,cat\n8,dog\n", "a.zip")
    with pytest.raises(OutOfPlaceError, match=r"it lists images/7.jpg: a spreadsheet has taken leading zeros away"):
        layout.place("images/007.jpg")
    with pytest.raises(OutOfPlaceError, match=r"csv.unlisted is 'fail'$"):
        layout.place("images/009.jpg")


@pytest.mark.parametrize(
    ("rows", "header", "settings", "words"),
    [
        (ROWS[1:], "id,breed", {}, r"kaggle/images/set0/0.jpg .* has no place in the layout"),
        ([*ROWS, ("set0/none", "cat")], "id,breed", {}, r"lacks kaggle/images/set0/none.jpg, which .* \(1 such"),
        (ROWS, "id,breed", {"folder": "pics"}, r"lacks kaggle/pics/set0/0.jpg.*30 such rows.*csv.folder"),
        ([*ROWS, ROWS[0]], "id,breed", {}, "lists set0/0 twice, at line 32"),
        ([*ROWS[:-1], (ROWS[-1][0], "")], "id,breed", {}, "empty field at line 31"),
        (ROWS, "name,breed", {}, r"no column 'id', only 'name', 'breed'; set csv.path_column"),
        ([(";".join(row),) for row in ROWS], "id;breed", {}, r"fields are separated by ';'; save it with commas"),
        ([(*row, row[1]) for row in ROWS], "id,breed, breed", {}, "has several columns 'breed'; rename all but one"),
        ([*ROWS[:-1], (ROWS[-1][0], "dog", " wild")], "id,breed", {}, "more fields at line 31 than its first line"),
        ([*ROWS[:-1], (ROWS[-1][0], ' "dog', ' wild"')], "id,breed", {}, r"more fields at line 31 .*into quotes"),
        ([('"x', "y")], "id,breed", {}, r"labels.csv in .* is not sound CSV at line"),
        ([], "id,breed", {}, "lists no images"),
        (ROWS, "id,breed", {"file": "other.csv"}, r"has no other.csv"),
        (ROWS, "id,breed", {"split_column": "part"}, "no column 'part'"),
        ([(*row, "train" if i else "val") for i, row in enumerate([(ROWS[0][0], "fox"), *ROWS[1:]])], "id,breed,part",
         {"split_column": "part"}, "class 'fox' in val but not in train"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_csv_file_is_named(tmp_path, rows, header, settings, words):
    with pytest.raises(UserError, match=words):
        attempt(tmp_path, table(rows, header), layout="csv", csv={**TABLE, **settings})
    assert not (tmp_path / "out/manifest.json").exists()


def test_unlisted_pictures_are_left_out_on_request(tmp_path):
    attempt(tmp_path, table(ROWS[5:]), layout="csv", csv={**TABLE, "unlisted": "leave_out"})
    assert len(pictures(tmp_path / "out", "train")) + len(pictures(tmp_path / "out", "val")) == 25


PETS = {f"pets/{split}/{kind}/{i}.jpg": picture(i + 10 * (kind == "dog") + 100 * (split == "val"))
        for split in ("train", "val") for kind in ("dog", "cat") for i in range(2)}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "text"),
    [("names.txt", "cat Domestic cat, sitting\ndog Dog\n"), ("names.csv", 'class,name\ncat,"Domestic cat, sitting"\n')],
)
def test_classes_get_names_for_people(tmp_path, file, text):
    members = {**PETS, f"pets/{file}": text.encode()}
    attempt(tmp_path, members, layout="imagefolder", class_file=file, class_names={"dog": "Good dog"})
    classes = json.loads((tmp_path / "out/classes.json").read_text())
    assert [entry["synset"] for entry in classes] == ["cat", "dog"]
    assert [entry["name"] for entry in classes] == ["Domestic cat, sitting", "Good dog"]


def test_wrong_names_of_classes_are_named(tmp_path):
    for settings, words in (
        ({"class_names": {"cow": "Cow"}}, r"names class cow, which .* does not have; it has cat, dog"),
        ({"class_file": "none.txt"}, "has no none.txt, which 'class_file' names"),
        ({"class_file": "other.txt"}, r"other.txt in .* names none of its classes"),
        ({"class_file": "spaces.csv"}, r"spaces.csv in .* names none of its classes"),
        ({"class_file": "long.csv"}, r"long.csv in .* is not sound CSV at line \d: field larger than"),
    ):
        texts = {"pets/other.txt": b"cow Cow\n", "pets/long.csv": b"cat," + b"x" * 140_000}
        texts["pets/spaces.csv"] = b"cat;Cat\ndog;Dog\n"
        with pytest.raises(UserError, match=words):
            attempt(tmp_path, {**PETS, **texts}, layout="imagefolder", **settings)
