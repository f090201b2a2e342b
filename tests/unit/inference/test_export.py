"""`trainyard export`: a published model gets other formats later, anywhere, by the code that ends a run."""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pages
import pytest
import torch
from conftest import ROOT, Trainer, environment
from forked import Forker

from trainyard.core.exits import UserError
from trainyard.inference import export

pytestmark = [pytest.mark.takes(20), pytest.mark.ranks(1)]
EXPORTS = ("model.pt2", "model.onnx")


@pytest.fixture(scope="module")
def ended(session_trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that has published its model in every format."""
    session_trainer.forker.load("onnxscript", "onnx.reference", "torch.export", "torch.onnx")
    over = {"epochs": 1, "precision": "fp32", "model.batch_norm": "local", "publish.export": ["torch", "onnx"]}
    return session_trainer.train(tmp_path_factory.mktemp("ended") / "run", **over)


@pytest.fixture
def plain(ended: Path, tmp_path: Path) -> Path:
    """A published folder without exports, copied away from its run."""
    folder = shutil.copytree(ended / "published", tmp_path / "published", ignore=shutil.ignore_patterns(*EXPORTS))
    for name in ("README.md", "SHA256SUMS"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        kept, skipping = [], False
        for line in lines:
            skipping = any(f"`{export}`" in line for export in EXPORTS) or (skipping and line.startswith("  "))
            kept += [] if skipping or line.rstrip().endswith(EXPORTS) else [line]
        (folder / name).write_text("".join(kept))
    return folder


def test_a_published_folder_gets_what_the_end_of_a_run_would_have_written(
    forker: Forker, plain: Path, ended: Path
) -> None:
    assert not any(name in (plain / "README.md").read_text() for name in EXPORTS)
    pages.run(forker, "evaluate.md", "trainyard export", RUN=plain)
    published = ended / "published"
    assert {one.name for one in plain.iterdir()} == {one.name for one in published.iterdir()}
    card, wanted = (re.sub(r"(difference was) \S+\.$", r"\1 ...", (folder / "README.md").read_text(), flags=re.M)
                    for folder in (plain, published))  # fmt: skip
    assert card == wanted  # but for the last digits, which depend on the number of threads
    assert card.count("`model.onnx`") == card.count("difference was ...") - 1 == 1
    assert (plain / "model.onnx").read_bytes() == (published / "model.onnx").read_bytes()
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=plain, check=True)
    once = (plain / "SHA256SUMS").read_text(), (plain / "README.md").read_text()
    pages.run(forker, "serving.md", "trainyard export", RUN=plain)  # again: nothing is listed twice
    assert ((plain / "SHA256SUMS").read_text(), (plain / "README.md").read_text()) == once


def exported(forker: Forker, model: Path, *more: str | Path) -> "subprocess.CompletedProcess[str]":
    """Export a model as ONNX."""
    words = [sys.executable, "-m", "trainyard", "export", "--model", str(model), "--to", "onnx", *map(str, more)]
    return forker.run(words, env=environment(), cwd=ROOT)


def test_a_checkpoint_is_exported_into_a_folder_that_can_be_served(forker: Forker, ended: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "served"
    done = exported(forker, max((ended / "checkpoints").glob("step-*")), "--out", out)
    assert done.returncode == 0, done.stderr
    assert {one.name for one in out.iterdir()} == {"model.onnx", "config.json", "SHA256SUMS"}
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=out, check=True)
    assert (out / "config.json").read_text() == (ended / "published" / "config.json").read_text()
    pictures = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1)).numpy()
    import onnxruntime

    ours, theirs = (
        onnxruntime.InferenceSession(folder / "model.onnx").run(["logits"], {"pictures": pictures})[0]
        for folder in (out, ended / "published")
    )
    assert abs(ours - theirs).max() < 1e-4


def test_what_cannot_be_exported_is_refused_and_nothing_is_lost(
    plain: Path, ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {one.name: one.read_bytes() for one in plain.iterdir()}
    step = max((ended / "checkpoints").glob("step-*"))
    for words, said in (
        (["--model", str(step), "--to", "torch"], "has no published/: name a folder for the files with --out"),
        (["--model", str(step), "--to", "torch", "--out", str(plain)], "--out .* is not empty: name a new folder"),
        (["--model", str(tmp_path / "nowhere"), "--to", "torch", "--out", str(tmp_path / "x")], "no such folder"),
    ):
        with pytest.raises(UserError, match=said):
            export.main(words)
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # what Python does when it is not there
    with pytest.raises(UserError, match=r"--to onnx needs onnxscript: pip install onnxscript$"):
        export.main(["--model", str(plain), "--to", "onnx"])
    assert not (tmp_path / "x").exists()
    assert {one.name: one.read_bytes() for one in plain.iterdir()} == before


def test_a_model_that_cannot_be_exported_keeps_its_folder(forker: Forker, ended: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(ended / "published", tmp_path / "published", ignore=shutil.ignore_patterns(*EXPORTS))
    described, sums = folder / "config.json", folder / "SHA256SUMS"
    digest = hashlib.sha256(described.read_bytes()).hexdigest()
    described.write_text(described.read_text().replace("little_models:net", "little_models:forked"))
    sums.write_text(sums.read_text().replace(digest, hashlib.sha256(described.read_bytes()).hexdigest()))
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    done = exported(forker, folder)
    assert done.returncode == 2, done.stderr
    assert "--to onnx: model.onnx was not written: " in done.stderr
    assert "publish.export" not in done.stderr
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before
