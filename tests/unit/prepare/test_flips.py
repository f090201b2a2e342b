"""One flipped byte anywhere: it is detected and named, or what is trained on is byte-identical."""

import gzip
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.unit.prepare.make_archives import config, contents, imagenet, write_tar, write_zip
from trainyard.core.exits import ExitError, UserError
from trainyard.core.storage import storage
from trainyard.prepare import build as building
from trainyard.prepare.build import build
from trainyard.prepare.settings import parse
from trainyard.prepare.verify import verify
from trainyard.shards import manifest as manifests
from trainyard.shards.reader import open_split

FLIPS = pytest.mark.parametrize("flips", [50, pytest.param(500, marks=pytest.mark.soak)])


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A small archive, and the folder that comes of it."""
    folder = tmp_path_factory.mktemp("flips")
    archive = write_zip(folder / "a.zip", imagenet(60, 12))
    build(config(archive, folder / "little"))
    return archive, folder / "little"


def flipped(data: bytes, at: int, chance: np.random.Generator) -> bytes:
    """Change one bit, or all of a byte."""
    change = int(chance.choice([1 << int(chance.integers(8)), 255]))
    return data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]


def trained_on(root):
    """Everything that a trainer sees of a folder: each sample's bytes and label, the classes and their names."""
    splits = [open_split(root, split) for split in ("train", "val")]
    seen = [[(shards.read(i), int(shards.labels[i])) for i in range(len(shards))] for shards in splits]
    for shards in splits:
        shards.close()
    return seen, splits[0].classes, splits[0].class_names


def outcome(action, *arguments):
    """Do something; return what came of it, and what it said when it was refused."""
    try:
        return action(*arguments), ""
    except (UserError, ExitError) as error:
        return None, str(error)


def unpacked(root: Path) -> list[bytes]:
    """Return the names of the samples: gzip's header has bytes that say nothing."""
    return [gzip.decompress(path.read_bytes()) for path in sorted(root.glob("*.gz"))]


def positions(data: bytes, chance: np.random.Generator, count: int) -> list[int]:
    return sorted(map(int, chance.choice(len(data), count, replace=False)))


@FLIPS
@pytest.mark.parametrize("place", ["anywhere", "directory and texts"])
def test_a_flipped_byte_in_the_archive(sound, in_memory, place, flips, capsys):
    """Half of the flips hit the directory and the texts at its end, which random ones would rarely hit."""
    archive, wanted = sound
    data = archive.read_bytes()
    first = 0 if place == "anywhere" else data.rindex(b"PK\x03\x04", 0, data.index(b"PK\x01\x02"))
    chance = np.random.Generator(np.random.Philox(key=first))
    path, out = in_memory / "a.zip", in_memory / "little"
    named = harmless = 0
    for at in positions(data[first:], chance, flips):
        path.write_bytes(flipped(data, first + at, chance))
        _, words = outcome(build, config(path, out))
        if words:
            assert "a.zip" in words or "LOC_" in words
            assert not manifests.exists(out)
            named += 1
        else:
            found, expected = contents(out, manifest=False), contents(wanted, manifest=False)
            assert found == expected, f"byte {first + at} changed the result without a word"
            harmless += 1
        shutil.rmtree(out, ignore_errors=True)
    assert named > 5, (named, harmless)


class StoppedError(Exception):
    """The preparation was stopped."""


def stopped(*_):
    raise StoppedError


@FLIPS
@pytest.mark.parametrize("write", [write_zip, write_tar], ids=["zip", "tar"])
def test_a_flipped_byte_in_what_a_stopped_preparation_left(in_memory, monkeypatch, write, flips):
    """Its notes say what is finished, and a tar's listing which class an image is of: the result stays the same."""
    archive, chance = write(in_memory / "archive", imagenet(12, 6)), np.random.Generator(np.random.Philox(key=7))
    left, out = in_memory / "left", in_memory / "little"
    source = {"kind": "path", "path": str(archive), "sha256": storage.hash_file(archive)}
    settings = parse({"source": source, "out": str(out), "shard_mb": 1, "workers": 2, "seekable": False})
    build(settings)
    wanted = contents(out)
    shutil.rmtree(out)
    with monkeypatch.context() as patch:
        patch.setattr(building, "publish", stopped)
        with pytest.raises(StoppedError):
            build(settings)
    out.rename(left)
    notes = sorted(path.relative_to(left) for path in (left / ".prepare").iterdir())
    kinds = {note.name.partition("-")[0] for note in notes}
    assert {"train", "val", "source.sha256"} | ({"listing"} if write is write_tar else set()) <= kinds
    for number in range(flips):
        shutil.copytree(left, out)
        path = out / notes[number % len(notes)]
        if data := path.read_bytes():
            at = int(chance.integers(len(data)))
            path.write_bytes(flipped(data, at, chance))
        build(settings)
        assert contents(out) == wanted, (path.name, path.read_bytes())
        shutil.rmtree(out)


@FLIPS
def test_a_flipped_byte_in_any_prepared_file(sound, in_memory, flips, capsys):
    """The trainer stops and names the file, or sees the same; verify names it unless the file says the same."""
    _, wanted = sound
    out = in_memory / "little"
    shutil.copytree(wanted, out)
    expected, before = trained_on(wanted), manifests.load(wanted)
    files = [out / name for name in sorted(contents(out))]
    chance = np.random.Generator(np.random.Philox(key=5))
    refused = 0
    for number in range(flips):
        path = files[number % len(files)]
        data = path.read_bytes()
        at = int(chance.integers(len(data)))
        path.write_bytes(flipped(data, at, chance))
        seen, words = outcome(trained_on, out)
        if words:
            assert path.name in words
            assert re.search(r"prepare (build|repair)", words)
            refused += 1
        else:
            assert seen == expected, f"byte {at} of {path.name} was trained on without a word"
        _, words = outcome(verify, out)
        if words:
            assert path.name in words + capsys.readouterr().err
        else:
            assert path.name == manifests.FILE or path.suffix == ".gz"
            assert manifests.load(out) == before
            assert unpacked(out) == unpacked(wanted)
        path.write_bytes(data)
    assert refused > flips / 2
