"""`trainyard export`: a published model gets other formats later, anywhere, by the code that ends a run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import Trainer

from tests import documents
from trainyard.core.exits import UserError
from trainyard.inference import export

pytestmark = [pytest.mark.takes(60), pytest.mark.ranks(1)]
EXPORTS = ("model.pt2", "model.onnx")


@pytest.fixture
def plain(session_trainer: Trainer, fashion_run: Path, tmp_path: Path) -> Path:
    """A published folder without exports, copied away from its run."""
    folder = shutil.copytree(fashion_run / "published", tmp_path / "published", ignore=shutil.ignore_patterns(*EXPORTS))
    for name in ("README.md", "SHA256SUMS"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        kept, skipping = [], False
        for line in lines:
            skipping = any(f"`{export}`" in line for export in EXPORTS) or (skipping and line.startswith("  "))
            kept += [] if skipping or line.rstrip().endswith(EXPORTS) else [line]
        (folder / name).write_text("".join(kept))
    return folder


def test_a_published_folder_gets_what_the_end_of_a_run_would_have_written(plain: Path, fashion_run: Path) -> None:
    assert not any(name in (plain / "README.md").read_text() for name in EXPORTS)
    documents.run("evaluate.md", "trainyard export", RUN=plain)
    ended = fashion_run / "published"
    assert {one.name for one in plain.iterdir()} == {one.name for one in ended.iterdir()}
    card, wanted = (re.sub(r"(difference was) \S+\.$", r"\1 ...", (folder / "README.md").read_text(), flags=re.M)
                    for folder in (plain, ended))  # fmt: skip
    assert card == wanted  # but for the last digits, which depend on the number of threads
    assert card.count("`model.onnx`") == card.count("difference was ...") - 1 == 1
    assert (plain / "model.onnx").read_bytes() == (ended / "model.onnx").read_bytes()
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=plain, check=True)
    once = (plain / "SHA256SUMS").read_text(), (plain / "README.md").read_text()
    assert export.main(["--model", str(plain), "--to", "onnx"]) == 0  # again: nothing is listed twice
    assert ((plain / "SHA256SUMS").read_text(), (plain / "README.md").read_text()) == once


def test_a_checkpoint_is_exported_into_a_folder_that_can_be_served(fashion_run: Path, tmp_path: Path) -> None:
    step = max((fashion_run / "checkpoints").glob("step-*"))
    assert export.main(["--model", str(step), "--to", "onnx", "--out", str(tmp_path / "new" / "served")]) == 0
    out = tmp_path / "new" / "served"
    assert {one.name for one in out.iterdir()} == {"model.onnx", "config.json", "SHA256SUMS"}
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=out, check=True)
    assert (out / "config.json").read_text() == (fashion_run / "published" / "config.json").read_text()
    pictures = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(1)).numpy()
    import onnxruntime

    ours, theirs = (
        onnxruntime.InferenceSession(folder / "model.onnx").run(["logits"], {"pictures": pictures})[0]
        for folder in (out, fashion_run / "published")
    )
    assert abs(ours - theirs).max() < 1e-4


def test_what_cannot_be_exported_is_refused_and_nothing_is_lost(
    plain: Path, fashion_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {one.name: one.read_bytes() for one in plain.iterdir()}
    step = max((fashion_run / "checkpoints").glob("step-*"))
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


def test_a_model_that_cannot_be_exported_keeps_its_folder(trainer: Trainer, tmp_path: Path) -> None:
    run = trainer.train(tmp_path / "run", **{"epochs": 1, "model.name": "little_models:forked"})
    before = {one.name: one.read_bytes() for one in (run / "published").iterdir()}
    process = trainer.python("-m", "trainyard", "export", "--model", str(run), "--to", "onnx")
    said, _ = process.communicate()
    assert process.returncode == 2, said
    assert "--to onnx: model.onnx was not written: " in said
    assert "publish.export" not in said
    assert {one.name: one.read_bytes() for one in (run / "published").iterdir()} == before
