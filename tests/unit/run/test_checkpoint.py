"""Checkpoints: complete or absent, checked, pruned."""

import errno
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_storage import failing
from safetensors.torch import load_file

from tests import patience
from tests.util import small_disk
from trainyard.core.exits import ExitError, UserError
from trainyard.core.storage import storage
from trainyard.run import checkpoint, checkpoint_manifest, checkpoint_writer
from trainyard.run.checkpoint_writer import Writer
from trainyard.run.tensor_file import Source

pytestmark = pytest.mark.takes(15)

Manifest = dict[str, Any]
OLDER = Path(__file__).parent / "stored" / "ddp" / "checkpoints" / "step-00000003"  # without a checksum of its manifest


def state(value: float) -> dict[str, Any]:
    return {"model": {"w": torch.full((50,), value)}, "optimizer": {"state": {0: {"m": torch.full((50,), -value)}}}}


def filled(folder: Path, *steps: int) -> Path:
    for step in steps:
        checkpoint.save(folder, step, state(step), {"identity": {"x": 1}})
    return folder


def test_newest_is_found_and_loads(tmp_path: Path) -> None:
    found, reports = checkpoint.newest(filled(tmp_path, 10, 20))
    assert found is not None
    assert (found.step, reports, found.meta["identity"]) == (20, [], {"x": 1})
    loaded = found.load()
    assert torch.equal(loaded["model"]["w"], state(20)["model"]["w"])
    assert torch.equal(loaded["optimizer"]["state"][0]["m"], state(20)["optimizer"]["state"][0]["m"])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: flip(path / "model.safetensors"), "model.safetensors has changed"),
        (lambda path: (path / "optimizer.safetensors").write_bytes(b"short"), "optimizer.safetensors has 5 bytes"),
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda path: (path / "manifest.json").write_text('{"step": 2'), "manifest.json is missing or not whole"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing or not whole"),
    ],
)
def test_damaged_one_is_set_aside_and_the_one_before_used(tmp_path: Path, damage: Any, said: str) -> None:
    filled(tmp_path, 10, 20)
    damage(tmp_path / "step-00000020")
    found, reports = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 10
    assert len(reports) == 1
    assert said in reports[0]
    assert (tmp_path / "damaged-step-00000020").is_dir()
    assert checkpoint.newest(tmp_path)[1] == []  # reported once
    with pytest.raises(UserError, match="not a sound checkpoint"):
        checkpoint.at(tmp_path / "damaged-step-00000020")


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, bytes(64)], ids=["empty", "short", "ones", "zeros"])
def test_one_whose_manifest_vouches_for_what_cannot_be_loaded_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = filled(tmp_path, 10, 20) / "step-00000020"
    (path / "optimizer.safetensors").write_bytes(content)
    meta = json.loads((path / "manifest.json").read_text())
    meta["files"]["optimizer.safetensors"] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (path / "manifest.json").write_text(json.dumps(checkpoint_manifest.add_checksum(meta)))
    with pytest.raises(UserError, match=r"not a sound checkpoint .*optimizer.safetensors does not hold tensors"):
        checkpoint.at(path)
    found, reports = checkpoint.newest(tmp_path)
    assert (found is not None and found.step, len(reports)) == (10, 1)
    assert "optimizer.safetensors does not hold tensors" in reports[0]


def test_a_manifest_with_a_bit_of_any_byte_changed_is_damaged_or_says_the_same(tmp_path: Path) -> None:
    meta = {"scaler": {}, "validated": 1, "seconds": {"init": 1.5}, "identity": {"seed": 3}, "holder": "a"}
    path = checkpoint.save(tmp_path, 20, state(20), meta)
    data = (path / "manifest.json").read_bytes()
    said = {key: value for key, value in json.loads(data).items() if key != "checksum"}
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 << index % 7
        (path / "manifest.json").write_bytes(changed)
        try:
            found = checkpoint.read_checked(path)
        except checkpoint.DamagedCheckpointError:
            continue
        assert {key: found.meta[key] for key in said} == said, bytes(changed)


def test_a_checkpoint_of_another_step_is_damaged(tmp_path: Path) -> None:
    (filled(tmp_path, 10, 20) / "step-00000020").rename(tmp_path / "step-00000030")
    found, reports = checkpoint.newest(tmp_path)
    assert (found is not None and found.step, "is that of step 20" in reports[0]) == (10, True)


def changed(**entries: Any) -> Callable[[Manifest], Manifest]:
    return lambda manifest: {**manifest, **entries}


def without(*keys: str) -> Callable[[Manifest], Manifest]:
    """Without an entry, which is named by the keys that lead to it."""

    def drop(tree: Manifest, first: str, *rest: str) -> Manifest:
        return {**tree, first: drop(tree[first], *rest)} if rest else {k: v for k, v in tree.items() if k != first}

    return lambda manifest: drop(manifest, *keys)


@pytest.mark.parametrize("change", [
    *(changed(step=step) for step in (4, -3, True, 3.0, "3", None)),
    *(changed(format=written) for written in (None, "2", -2)),
    *(changed(files=files) for files in ({}, [], None, {"model.safetensors": None})),
    *(without("files", f"{name}.safetensors") for name in ("model", "optimizer", "ema")),
    without("files", "model.safetensors", "bytes"), without("files", "ema.safetensors", "sha256"),
    lambda manifest: {**manifest, "files": {**manifest["files"], "../\x00": {"bytes": 1, "sha256": "0" * 64}}},
    without("scaler"), *(changed(scaler=scaler) for scaler in (None, [], {"scale": 1.0})),
    without("validated"), *(changed(validated=epochs) for epochs in (None, "1", -1, False)),
    *(changed(seconds=seconds) for seconds in (None, 3, {"init": "9"}, {"init": None})),
    changed(identity=[]), changed(config="model"),
])  # fmt: skip
def test_an_older_manifest_without_a_checksum_must_hold_what_is_used_of_it(
    tmp_path: Path, change: Callable[[Manifest], Manifest]
) -> None:
    assert checkpoint.read_checked(OLDER).step == 3
    path = tmp_path / OLDER.name
    shutil.copytree(OLDER, path)
    (path / "manifest.json").write_text(json.dumps(change(json.loads((OLDER / "manifest.json").read_text()))))
    assert checkpoint.newest(tmp_path)[0] is None
    assert (tmp_path / f"damaged-{OLDER.name}").is_dir()


def test_what_is_loaded_has_the_hashes_that_were_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checkpoint.at(filled(tmp_path, 10) / "step-00000010")
    flip(found.path / "model.safetensors")
    monkeypatch.setenv("TRAINYARD_STORAGE_SECONDS", "0.2")
    with pytest.raises(ExitError, match="other bytes than a moment ago") as caught:
        found.load()
    assert caught.value.code == 200


def test_a_format_that_is_not_known_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = filled(tmp_path, 10, 20) / "step-00000020" / "manifest.json"
    text = manifest.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 4)
        checkpoint.save(tmp_path, 20, state(20), {"version": "9.9.9"})
    with pytest.raises(
        UserError, match=r"step-00000020 has format 4, written by version 9.9.9; .* reads formats 2 and 3"
    ):
        checkpoint.newest(tmp_path)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000010", "step-00000020"]
    manifest.write_text(text)
    assert checkpoint.newest(tmp_path)[0].step == 20  # type: ignore[union-attr]


def test_storage_that_fails_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 10, 20)
    faults = failing(monkeypatch, "step-00000020")
    faults += [errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EACCES]
    found, reports = checkpoint.newest(tmp_path)
    assert (found is not None and found.step, reports, faults) == (20, [], [])
    assert torch.equal(found.load()["model"]["w"], state(20)["model"]["w"])  # type: ignore[union-attr]

    monkeypatch.setenv("TRAINYARD_STORAGE_SECONDS", "0.2")
    faults += [errno.EIO] * 1000
    with pytest.raises(ExitError, match=r"Input/output error \(EIO\) for .* s: the storage does not answer") as caught:
        checkpoint.newest(tmp_path)
    assert caught.value.code == 200
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000010", "step-00000020"]


def test_a_hash_that_is_wrong_once_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 10)
    answers = iter(["0" * 64])
    real = storage.hash_file
    monkeypatch.setattr(storage, "hash_file", lambda path: next(answers, None) or real(path))
    assert checkpoint.newest(tmp_path)[1] == []


def test_interrupted_write_is_no_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path, 10)
    leftover = tmp_path / ".step-00000020.999999.tmp"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 10
    checkpoint.prune(tmp_path, 1)
    assert leftover.exists(), "another process may be writing it"
    checkpoint.tidy(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    checkpoint.prune(filled(tmp_path, 5, 100_000_000, 20, 30), 2)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000030", "step-100000000"]


def test_writer_copies_before_it_returns(tmp_path: Path) -> None:
    writer = Writer(tmp_path, keep_last=2)
    live = state(1)
    for step in (1, 2, 3):
        live["model"]["w"].fill_(step)
        writer.submit(step, live, {})
        live["model"]["w"].fill_(-1)  # training continues
    writer.wait()
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert torch.equal(found.load()["model"]["w"], torch.full((50,), 3.0))
    assert len(checkpoint.steps(tmp_path)) == 2


def test_writer_tells_why_it_could_not_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = Writer(tmp_path / "file" / "checkpoints", keep_last=1)
    writer.submit(1, state(1), {})
    with pytest.raises(ExitError, match="cannot be written"):
        writer.wait()


def test_a_volume_too_full_for_the_folder_of_checkpoints_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, *arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    writer = Writer(tmp_path / "checkpoints", 2)
    monkeypatch.setattr(Path, "mkdir", full)
    writer.submit(5, state(1), {})
    with pytest.raises(ExitError, match=r"No space left on device \(0.0 MB needed, [\d,.]+ MB free\); there is none"):
        writer.wait()


def test_any_tree_of_tensors_comes_back_as_it_was(tmp_path: Path) -> None:
    tree = {
        "conv": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last),
        "across": torch.randn(3, 5)[:, ::2],
        "half": torch.randn(7).bfloat16(),
        "flags": torch.tensor([True, False]),
        "count": torch.tensor(3),
        "none": torch.empty(0, 3),
        "a.b": torch.ones(1),
        "a": {"b": torch.zeros(1)},
        "state": {0: {"step": torch.tensor(2.0), "m": torch.randn(3, dtype=torch.float64)}, 5: {}},
        "groups": [{"lr": 0.1, "betas": [0.9, 0.999], "params": [0, 1], "name": None, "nesterov": True}],
    }
    checkpoint.save(tmp_path, 1, {"tree": tree, "empty": {}}, {})
    loaded = checkpoint.at(tmp_path / "step-00000001").load()
    assert loaded["empty"] == {}
    assert equal(loaded["tree"], tree)
    plain = load_file(tmp_path / "step-00000001" / "tree.safetensors")  # any reader of the format can open it
    assert torch.equal(plain["state.0.m"], tree["state"][0]["m"])


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def test_best_are_kept_beside_the_newest(tmp_path: Path) -> None:
    filled(tmp_path, 10, 20, 30, 40, 50)
    for step, top1 in ((10, 60.0), (20, 70.0), (30, 65.0), (40, 70.0), (99, 90.0)):
        checkpoint.score(tmp_path, step, top1)
    checkpoint.prune(tmp_path, 1, 1)
    assert [int(path.name[5:]) for path in checkpoint.steps(tmp_path)] == [40, 50]  # of equals the later one
    writer = Writer(filled(tmp_path, 20, 30), keep_last=2, keep_best=2)
    writer.submit(60, state(60), {})
    writer.wait()
    assert [int(path.name[5:]) for path in checkpoint.steps(tmp_path)] == [20, 40, 50, 60]


def test_copy_continues_until_settled(tmp_path: Path) -> None:
    writer, live = Writer(tmp_path, keep_last=1), state(1)
    running = torch.full((50,), 1.0)
    live["model"] |= {"large": torch.zeros(20_000_000), "running": running}  # copying takes a moment
    for step in (1, 2):
        writer.settle()
        for tensor in (live["model"]["w"], running):
            tensor.fill_(step)
        writer.submit(step, live, {}, changing=[running])
        running.fill_(-1)  # a forward changes what BatchNorm keeps
    writer.wait()
    loaded = checkpoint.at(tmp_path / "step-00000002").load()["model"]
    assert loaded["w"].tolist() == loaded["running"].tolist() == [2.0] * 50


def test_model_that_changes_its_weights_in_a_forward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes is held before it copies, so that the weights change in time on any machine."""
    changed, copy = threading.Event(), checkpoint_writer.copy

    def copied(sources: list[Source]) -> None:
        assert threading.current_thread() is threading.main_thread() or changed.wait(patience.IDLE)
        copy(sources)

    monkeypatch.setattr(checkpoint_writer, "copy", copied)
    writer, weights = Writer(tmp_path, keep_last=1), torch.zeros(50)
    writer.submit(1, {"model": {"weights": weights}}, {}, changing=[])
    weights[-1] = 1
    changed.set()
    writer.wait()
    assert list(tmp_path.iterdir()) == []
    assert "no checkpoint at step 1" in caplog.text
    changed.clear()
    writer.submit(2, {"model": {"weights": weights}}, {}, changing=[])  # all is copied before this returns
    weights[-1] = 2
    changed.set()
    writer.wait()
    assert checkpoint.at(tmp_path / "step-00000002").load()["model"]["weights"][-1] == 1


def test_nothing_is_published_once_the_folder_is_anothers(tmp_path: Path) -> None:
    ours = [True]
    writer = Writer(filled(tmp_path, 1, 2), keep_last=1, ours=lambda: ours[0])
    writer.submit(3, state(3), {})
    writer.wait()
    filled(tmp_path, 4, 5)
    ours[0] = False  # while it is being written
    writer.submit(6, state(6), {})
    writer.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}" for step in (3, 4, 5)]
    answers = iter([True, False])  # it appears, and then the folder is another's: nothing is removed any more
    writer = Writer(tmp_path, keep_last=1, ours=lambda: next(answers))
    writer.submit(7, state(7), {})
    writer.wait()
    assert len(checkpoint.steps(tmp_path)) == 4


FULL = """
import sys, torch
from pathlib import Path
from trainyard.run import checkpoint
from trainyard.run.checkpoint_writer import Writer
folder = Path(sys.argv[1])
writer = Writer(folder, keep_last=2)
for step, size in ((1, 200_000), (2, 600_000)):
    writer.submit(step, {"model": {"w": torch.full((size,), float(step))}}, {})
    try:
        writer.wait()
    except Exception as error:
        print(error.code, error)
print(sorted(path.name for path in folder.iterdir()), checkpoint.newest(folder)[0].load()["model"]["w"][0].item())
"""


def test_full_disk_is_told_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    done = small_disk.run_on(tmp_path, "2m", sys.executable, "-c", FULL, tmp_path)
    assert done.returncode == 0, done.stderr
    said, left = done.stdout.splitlines()
    assert said.startswith(f"1 a checkpoint cannot be written to {tmp_path}: No space left on device (2.4 MB needed, ")
    assert "the last one, step-00000001, is whole" in said
    assert "checkpoint.keep_last" in said
    assert left == "['step-00000001'] 1.0"
