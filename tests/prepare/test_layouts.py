import pytest

from tests.prepare.archives import DATA, SYNSETS, config, imagenet, picture, write_zip
from trainers.data.shards import open_split
from trainers.exits import UserError
from trainers.prepare.build import build


def attempt(tmp_path, members, **settings):
    return build(config(write_zip(tmp_path / "a.zip", members), tmp_path / "out", **settings))


@pytest.mark.parametrize("name", ["LOC_val_solution.csv", "LOC_synset_mapping.txt"])
def test_a_missing_table_is_named(tmp_path, name):
    members = imagenet(9, 6)
    del members[name]
    with pytest.raises(UserError, match=f"has no {name}"):
        attempt(tmp_path, members)


def test_a_validation_picture_without_label_or_a_label_without_picture_is_named(tmp_path):
    with pytest.raises(UserError, match=r"picture extra of .* has no label"):
        attempt(tmp_path, {**imagenet(9, 6), f"{DATA}/val/extra.JPEG": picture(5)})
    members = imagenet(9, 6)
    del members[f"{DATA}/val/val_3.JPEG"]
    with pytest.raises(UserError, match="lacks validation picture val_3"):
        attempt(tmp_path, members)


def test_a_class_without_training_pictures_would_shift_labels(tmp_path):
    members = {name: content for name, content in imagenet(9, 6).items() if f"train/{SYNSETS[1]}" not in name}
    with pytest.raises(UserError, match=rf"no training picture of class {SYNSETS[1]}"):
        attempt(tmp_path, members)


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


def test_imagefolder_with_a_class_only_in_val(tmp_path):
    members = {"train/cat/1.jpg": picture(1), "val/cat/2.jpg": picture(2), "val/dog/2.jpg": picture(3)}
    with pytest.raises(UserError, match="class dog in val but not in train"):
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
