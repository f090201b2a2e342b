"""What samples are called in their source: kept beside the shards, and named where training cannot read one."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.unit.prepare.make_archives import config, imagenet, picture, write_folder, write_tar, write_zip
from trainyard import config as training
from trainyard.core.exits import UserError
from trainyard.data.splits import open_splits
from trainyard.prepare import members_file
from trainyard.prepare.build import build
from trainyard.shards.reader import open_split
from trainyard.shards.sample_names import file_of, member_name

WRITERS = {
    "folder": write_folder,
    "zip": lambda path, members: write_zip(path.with_suffix(".zip"), members),
    "tar": lambda path, members: write_tar(path.with_suffix(".tar"), members),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("together", [50, members_file.TOGETHER])
def test_each_sample_has_its_own_name(tmp_path, monkeypatch, kind, together):
    monkeypatch.setattr(members_file, "TOGETHER", together)  # so few that several passes are needed
    members = imagenet()
    build(config(WRITERS[kind](tmp_path / "source", members), tmp_path / "out"))
    for split in ("train", "val"):
        shards = open_split(tmp_path / "out", split)
        assert len(shards) in (300, 90)
        for i in range(len(shards)):
            assert members[member_name(tmp_path / "out", split, i)] == shards.read(i)
        assert member_name(tmp_path / "out", split, len(shards)) == ""


def test_names_follow_where_images_are_left_out(tmp_path):
    members = imagenet(30, 9)
    broken = [name for name in members if name.endswith(("_3.JPEG", "_17.JPEG"))]
    members |= dict.fromkeys(broken, b"\xff\xd8 no image")
    out = tmp_path / "out"
    manifest = build(config(write_zip(tmp_path / "a.zip", members), out, decode="all", undecodable="leave_out"))
    assert len(manifest.left_out) == 3
    for split in ("train", "val"):
        shards = open_split(out, split)
        assert [members[member_name(out, split, i)] for i in range(len(shards))] == [
            shards.read(i) for i in range(len(shards))
        ]
        with gzip.open(file_of(out, split), "rt") as lines:
            assert sum(1 for _ in lines) == len(shards)


def test_an_empty_file_before_an_image_takes_no_name(tmp_path):
    members = {f"{kind}/{i}.jpg": picture(i + 50 * (kind == "b")) for kind in "ab" for i in range(4)}
    source = write_folder(tmp_path / "source", {**members, "a/1.jpf.txt.part": b"", "a/0.empty.txt": b""})
    build(config(source, tmp_path / "out", layout="folders", skip=["*.txt", "*.part"]))
    found = {member_name(tmp_path / "out", split, i) for split, n in (("train", 6), ("val", 2)) for i in range(n)}
    assert found == set(members)


def test_training_names_the_file_of_a_bad_image(tmp_path: Path):
    """As of a preparation that does not decode: the message has what `skip` takes."""
    members = {
        f"{split}/cat/{i}.jpg": picture(i + 40 * (split == "val")) for split in ("train", "val") for i in range(6)
    }
    members["train/cat/\x1b[2J.jpg"] = picture(7)[:700]
    source = write_zip(tmp_path / "a.zip", members)
    build(config(source, tmp_path / "out", layout="imagefolder", decode="none"))
    settings = training.build(
        {"recipe": "demo"}, {"data": {"dir": str(tmp_path / "out"), "workers": 1}, "model": {"num_classes": 1}}
    )
    train = open_splits(settings.data, settings.augment, settings.model, settings.seed, local_world=1, pin=False).train
    ids = [i for i in range(7) if "2J" in member_name(tmp_path / "out", "train", i)]
    with pytest.raises(UserError, match=re.escape("shard-00000.tar; train/cat/\\x1b[2J.jpg of the source): ")):
        next(iter(train.batches([(0, np.array(ids))])))


def test_folders_of_earlier_versions_have_no_names(tmp_path):
    build(config(write_zip(tmp_path / "a.zip", imagenet(9, 6)), tmp_path / "out"))
    for content in (None, b"", b"no gzip", gzip.compress(b"no json\n"), gzip.compress(json.dumps([1]).encode())):
        file_of(tmp_path / "out", "train").unlink(missing_ok=True)
        if content is not None:
            file_of(tmp_path / "out", "train").write_bytes(content)
        name = open_split(tmp_path / "out", "train").name(0)
        assert name == f"sample 0 of train ({tmp_path}/out/train/shard-00000.tar)"
