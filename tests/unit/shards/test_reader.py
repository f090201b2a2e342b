import errno
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from faulty_storage import failing

from trainyard.core.exits import ExitError, UserError
from trainyard.core.storage import storage
from trainyard.shards import manifest as manifests
from trainyard.shards.reader import open_split, open_splits


def test_any_sample_at_any_time_from_any_thread(prepared):
    shards = open_split(prepared, "train")
    assert len(shards) == 300
    assert shards.labels.dtype == np.int64
    order = np.random.Generator(np.random.Philox(key=1)).permutation(300)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(shards.read, map(int, order)))
    assert found == [shards.read(int(i)) for i in order]
    assert len(set(found)) == 300
    shards.close()
    assert shards.read(0) == found[list(order).index(0)]


def test_a_copy_in_another_process_reads_the_same(prepared):
    shards = open_split(prepared, "val")
    first = shards.read(5)
    assert pickle.loads(pickle.dumps(shards)).read(5) == first


@pytest.mark.parametrize("i", [-1, 300])
def test_no_sample_outside(prepared, i):
    with pytest.raises(IndexError):
        open_split(prepared, "train").read(i)


def test_an_unknown_split_is_named(prepared):
    with pytest.raises(UserError, match="no split 'test', only train, val"):
        open_split(prepared, "test")


def test_files_of_splits_that_are_opened_together_are_looked_at_once(prepared, monkeypatch):
    stat, seen = storage.stat, []
    monkeypatch.setattr(storage, "stat", lambda path, **named: seen.append(path) or stat(path, **named))
    train, val = open_splits(prepared, ["train", "val"]).values()
    assert (len(train), train.split, val.split) == (300, "train", "val")
    assert len(seen) == len(set(seen)) > 2


def test_a_flipped_byte_in_a_picture_is_found_when_it_is_read(prepared, tmp_path):
    out = tmp_path / "little"
    shutil.copytree(prepared, out)
    path = out / "train/shard-00000.tar"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    shards = open_split(out, "train")
    shards.read(1)
    with pytest.raises(UserError, match=r"shard-00000.tar is damaged at sample 0 of train.*repair"):
        shards.read(0)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EACCES, errno.ENOENT, errno.EINVAL])
def test_a_read_that_fails_is_done_again_from_a_reopened_file(prepared, monkeypatch, capsys, number):
    shards, calm = open_split(prepared, "train"), open_split(prepared, "train")
    faults = failing(monkeypatch, "shard-00000.tar")
    faults += [number, number]
    assert shards.read(0) == calm.read(0)  # opening fails
    faults += [number, number, number]
    assert shards.read(1) == calm.read(1)  # reading fails, then opening
    assert faults == []
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert "shard-00000.tar: " in said[0]
    assert "no file is waited for any more" in said[1]


def test_a_read_works_without_a_call_more_than_it_needs(prepared, monkeypatch):
    shards = open_split(prepared, "train")
    shards.read(0)
    calls = failing(monkeypatch, "shard-00000.tar", count := [])
    assert shards.read(1)
    assert (count, calls) == (["pread"], [])


def test_a_handle_that_went_bad_is_replaced_once(prepared, tmp_path, monkeypatch):
    """As after a server that failed over: the handle from before gives nothing, the file itself is sound."""
    out = tmp_path / "little"
    shutil.copytree(prepared, out)
    shards, calm = open_split(out, "train"), open_split(prepared, "train")
    shards.read(0)
    path, before = out / "train/shard-00000.tar", tmp_path / "before"
    path.rename(before)
    shutil.copy(before, path)
    os.truncate(before, 0)
    assert shards.read(1) == calm.read(1)
    failing(monkeypatch, "shard-00000.tar", calls := [])
    assert shards.read(2)
    assert calls == ["pread"]


def handles_of(path: Path) -> int:
    """Count this process's open handles of a file; other tests' handles of other files do not matter."""
    return sum(os.path.realpath(fd) == str(path) for fd in Path("/proc/self/fd").iterdir())


def test_all_threads_survive_one_reopening(prepared, monkeypatch):
    shards, calm = open_split(prepared, "train"), open_split(prepared, "train")
    wanted = [calm.read(i) for i in range(100)]
    shards.read(0)
    path = prepared / "train/shard-00000.tar"
    before = handles_of(path)
    faults = failing(monkeypatch, "shard-00000.tar")
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            faults += [errno.ESTALE] * 20
            assert list(pool.map(shards.read, range(100))) == wanted
    assert handles_of(path) == before, "a handle that was replaced is left open"


def test_storage_that_stays_away_ends_the_run_with_a_code_that_is_retried(prepared, monkeypatch):
    monkeypatch.setenv("TRAINYARD_STORAGE_SECONDS", "0.2")
    shards = open_split(prepared, "train")
    faults = failing(monkeypatch, "shard-00000.tar")
    faults += [errno.ESTALE] * 1000
    with pytest.raises(
        ExitError, match=r"shard-00000.tar: Stale file handle \(ESTALE\) for .* s: the storage"
    ) as caught:
        shards.read(0)
    assert caught.value.code == 200


def test_damage_that_a_second_read_does_not_show_is_none(prepared, tmp_path, monkeypatch):
    shards, calm = open_split(prepared, "train"), open_split(prepared, "train")
    real, wrong = os.pread, [1]

    def once(descriptor, size, offset):
        data = real(descriptor, size, offset)
        return bytes([data[0] ^ 1]) + data[1:] if wrong and wrong.pop() else data

    monkeypatch.setattr(os, "pread", once)
    assert shards.read(3) == calm.read(3)
    assert wrong == []


def test_a_shard_that_vanishes_meanwhile_is_named(prepared, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_STORAGE_SECONDS", "0.2")
    out = tmp_path / "little"
    shutil.copytree(prepared, out)
    shards = open_split(out, "val")
    (out / "val/shard-00000.tar").unlink()
    with pytest.raises(UserError, match=r"val/shard-00000.tar cannot be read"):
        shards.read(0)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("manifest.json", lambda data: data[:50], "is not a manifest"),
        ("manifest.json", lambda data: data.replace(b'"format": 1', b'"format": 9'), "does not have its checksum"),
        ("manifest.json", lambda data: b'{"format": 9}', "format 9"),
        ("train/shard-00000.tar", lambda data: data[:-1], r"shard-00000.tar has .* bytes instead of"),
        ("train/shard-00001.index.npy", lambda data: data[:-16] + b"\xff" * 16, "does not have its SHA-256"),
        ("train/shard-00001.index.npy", lambda data: b"x" * len(data), "does not have its SHA-256"),
        ("train/shard-00001.index.npy", lambda data: data[:-8] + b"\0\0\0\0" + data[-4:], "does not have its SHA-256"),
        ("classes.json", lambda data: b"{}", "classes.json does not have its SHA-256"),
    ],
)
def test_a_damaged_folder_is_named_with_the_remedy(prepared, tmp_path, name, change, words):
    out = tmp_path / "little"
    shutil.copytree(prepared, out)
    (out / name).write_bytes(change((out / name).read_bytes()))
    with pytest.raises(UserError, match=words):
        open_split(out, "train")


def test_no_folder_at_all(tmp_path):
    with pytest.raises(UserError, match=r"manifest.json is missing: the dataset is not prepared"):
        open_split(tmp_path, "train")
    assert not manifests.exists(tmp_path)
