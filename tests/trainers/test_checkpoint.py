"""Checkpoints: complete or not there, checked, pruned."""

from pathlib import Path
from typing import Any

import pytest
import torch

from trainers import checkpoint
from trainers.exits import ExitError, UserError


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


def test_interrupted_write_is_no_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path, 10)
    leftover = tmp_path / ".step-00000020.999999.tmp"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 10
    checkpoint.prune(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    checkpoint.prune(filled(tmp_path, 5, 100_000_000, 20, 30), 2)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000030", "step-100000000"]


def test_writer_copies_before_it_returns(tmp_path: Path) -> None:
    writer = checkpoint.Writer(tmp_path, keep_last=2)
    live = state(1)
    for step in (1, 2, 3):
        live["model"]["w"].fill_(step)
        writer.submit(step, live, {})
        live["model"]["w"].fill_(-1)  # training goes on
    writer.wait()
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert torch.equal(found.load()["model"]["w"], torch.full((50,), 3.0))
    assert len(checkpoint.steps(tmp_path)) == 2


def test_writer_tells_why_it_could_not_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = checkpoint.Writer(tmp_path / "file" / "checkpoints", keep_last=1)
    writer.submit(1, state(1), {})
    with pytest.raises(ExitError, match="cannot be written"):
        writer.wait()
