"""A failure is final for a job only while what the run reads is as it was: files are repaired without new settings."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starting import attempt, count, opened, over_already, run_directory
from torch import nn

from trainyard import config
from trainyard.config import Config
from trainyard.core.exits import ExitError, UserError
from trainyard.models.factory import load_weights
from trainyard.parallel.environment import Place
from trainyard.run import checkpoint
from trainyard.run.failures import explain_errors


def settings(root: Path, weights: str = "", resume: str = "", seed: int = 1) -> Config:
    layer = {
        "run": {"dir": str(root / "run")}, "data": {"dir": str(root / "data")}, "seed": seed,
        "model": {"pretrained": str(root / weights) if weights else ""},
        "resume": str(root / resume) if resume else "auto",
    }  # fmt: skip
    return config.build({"recipe": "demo"}, layer)


def load(run: Config) -> None:
    load_weights(nn.Linear(2, 2), run.model, run.data)


def enter(run: Config) -> None:
    count(run)
    run_directory(run).start({})


def replace_weights(root: Path) -> None:
    """By a copy that keeps the time, and has the same size."""
    path, was = root / "weights.pth", (root / "weights.pth").stat()
    path.write_bytes(b"correct")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def write(name: str) -> Callable[[Path], None]:
    def writing(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"other")

    return writing


def save(name: str) -> Callable[[Path], Path]:
    return lambda root: checkpoint.save(root / name, 5, {"model": {}}, {})


KINDS: dict[str, tuple[dict[str, Any], Callable[[Config], object], str, Callable[[Path], object]]] = {
    "damaged weights": ({"weights": "weights.pth"}, load, "weights.pth", replace_weights),
    "the hash of weights": ({"weights": "weights.pth"}, load, "weights.pth", write("SHA256SUMS")),
    "no weights": ({"weights": "weights.pth"}, load, "weights.pth", write("weights.pth")),
    "no dataset": ({}, opened, "manifest.json is missing", write("data/manifest.json")),
    "no classes": ({}, opened, "manifest.json", write("data/classes.json")),
    "a damaged shard": ({}, opened, "manifest.json", write("data/train/shard-00000.tar")),
    "a lost checkpoint": ({}, enter, "step-00000005 is gone", save("run/checkpoints")),
    "no named checkpoint": ({"resume": "other/step-00000005"}, enter, "no such folder", save("other")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_is_refused_until_the_cause_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    layer, fail, message, repair = KINDS[kind]
    (tmp_path / "run").mkdir()
    if kind == "a lost checkpoint":
        (tmp_path / "run/metrics.jsonl").write_text('{"event": "checkpoint", "step": 5, "epoch": 1, "time": 1.5}\n')
    if kind in ("damaged weights", "the hash of weights"):
        (tmp_path / "weights.pth").write_bytes(b"damaged")
    if kind == "a damaged shard":
        (tmp_path / "data" / "train").mkdir(parents=True)
        (tmp_path / "data" / "train" / "shard-00000.tar").write_bytes(b"short")
    run = settings(tmp_path, **layer)
    with pytest.raises(UserError, match=message), explain_errors(attempt(run, Place(), 8)):
        fail(run)
    for _ in range(2):
        with pytest.raises(ExitError, match=rf"{message}.*\(an earlier try; remove .*failed.json") as caught:
            over_already(run, 8)
        assert caught.value.code == 2
    assert over_already(settings(tmp_path, **layer, seed=9), 8) is None, "other settings are another try"
    repair(tmp_path)
    assert over_already(run, 8) is None


def test_of_many_shards_only_the_one_that_failed_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every process of a large run, when it fails and when it is tried again."""
    monkeypatch.setenv("TRAINYARD_JOB", "a")
    shards = tmp_path / "data" / "train"
    shards.mkdir(parents=True)
    for number in range(500):
        (shards / f"shard-{number:05d}.tar").write_bytes(b"short")
        (shards / f"shard-{number:05d}.index.npy").write_bytes(b"index")
    opened, real = [], os.open

    def count_opens(path: str | Path, *arguments: Any, **named: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", count_opens)
    run = settings(tmp_path)
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError), explain_errors(attempt(run, Place(), 8)):
        raise UserError(f"{shards}/shard-00123.tar is damaged at sample 7")
    for changed in ("", "shard-00124.tar"):
        if changed:
            (shards / changed).write_bytes(b"other")
        with pytest.raises(ExitError, match="an earlier try"):
            over_already(run, 8)
    assert {"shard-00123.tar", "shard-00123.index.npy"} <= set(opened)
    assert len(opened) < 60
    for repair in (write("data/train/shard-00123.tar"), write("data/train/shard-00123.index.npy")):
        before = {path: path.read_bytes() for path in shards.glob("shard-00123*")}
        times = {path: path.stat() for path in before}
        repair(tmp_path)
        assert over_already(run, 8) is None
        for path, content in before.items():
            path.write_bytes(content)
            os.utime(path, ns=(times[path].st_atime_ns, times[path].st_mtime_ns))
    (shards / "shard-00500.tar").write_bytes(b"one more")
    assert over_already(run, 8) is None
