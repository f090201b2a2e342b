"""A model of one's own is one file: docs/recipes.md trains, uses and exports examples/models/compact.py."""

import json
from pathlib import Path

import pages
import pytest
from forked import Forker
from torch import nn

from tests.documents import ROOT
from trainyard.models import factory

pytestmark = [pytest.mark.takes(40), pytest.mark.ranks(1)]


def test_the_pages_commands_train_use_and_export_it(forker: Forker, fashion_pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    short = {"--recipe demo": "--recipe demo --set epochs=null --set max_steps=3"}
    start = {"export PYTHONPATH=examples/models": f"export PYTHONPATH=examples/models:{ROOT}/src:{ROOT}"}
    pages.run(
        forker,
        "recipes.md",
        "export PYTHONPATH=examples/models",
        short | start,
        cwd=tmp_path,
        PICTURES=fashion_pictures,
    )
    run = tmp_path / "build" / "compact"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["model"]) == ("finished", 3, "compact:compact")
    assert len((tmp_path / "build/compact-predictions/predictions.jsonl").read_text().splitlines()) == 300
    import onnxruntime

    session = onnxruntime.InferenceSession(run / "published" / "model.onnx")
    assert session.get_outputs()[0].shape[1] == 10


def test_its_head_is_found_by_fine_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "models"))
    model = factory.create("compact:compact", 7)
    name, head = factory.find_head(model)
    assert (name, isinstance(head, nn.Linear), head.out_features) == ("head", True, 7)
