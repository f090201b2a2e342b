"""docs/first-model.md, as a reader follows it: its commands' own text, on real pictures in folders."""

import csv
import json
import re
from pathlib import Path

import pytest

from tests import documents, patience
from tests.documents import ROOT
from trainyard.prepare.sample import ensure_sample
from trainyard.shards.reader import open_split

pytestmark = [pytest.mark.takes(60), pytest.mark.ranks(2)]
HERE = "tests/test_first_model.py"
CLASSES = 3


def unpack(split: str, samples: range, to: Path) -> None:
    """Write the samples of the first classes as a folder per class."""
    shards = open_split(ensure_sample(), split)
    for i in [i for i in samples if shards.labels[i] < CLASSES]:
        folder = to / shards.class_names[shards.labels[i]].replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.png").write_bytes(shards.read(i))


def pretrain(folder: Path) -> None:
    """What `make train` leaves, from fewer steps."""
    clothes = ["--recipe", "demo", "--set", "max_steps=40", "--set", "batch.global=96", "--set", "run.dir=build/train"]
    done = patience.run([str(ROOT / ".venv/bin/python"), "-m", "trainers.ddp", *clothes], cwd=folder)
    assert done.returncode == 0, done.stderr


def test_the_page_takes_a_folder_of_pictures_to_a_model_in_use(tmp_path: Path) -> None:
    unpack("train", range(500), tmp_path / "pictures")
    unpack("val", range(500), tmp_path / "kept")
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    pretrain(tmp_path)
    said = ""
    for text in documents.texts("first-model.md", HERE):
        done = patience.run(["bash", "-euc", text], cwd=tmp_path)
        assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
        shown = documents.shown("first-model.md", text)
        assert shown
        assert not documents.lacking(shown, done.stdout + done.stderr, ("kept/beech/0901.jpg", "beech"))
        said = done.stdout
    assert float(re.search(r"largest difference (\S+)", said)[1]) < 1e-4  # type: ignore[index]
    build = tmp_path / "build"
    summary = json.loads((build / "trees-first/summary.json").read_text())
    assert (summary["status"], summary["world_size"]) == ("finished", 2)
    lines = [json.loads(line) for line in (build / "trees-first/metrics.jsonl").read_text().splitlines()]
    points = sum(line["event"] == "train" for line in lines)
    assert points >= min(50, summary["steps"]), "a short run has a curve, too"
    found = json.loads((build / "trees-evaluated/result.json").read_text())
    assert found["samples"] == sum(1 for _ in (tmp_path / "kept").rglob("*.png"))
    assert found["top1"] > 60  # of three classes
    with (build / "trees-predicted/predictions.csv").open() as lines:
        assert len(list(csv.DictReader(lines))) == found["samples"]
    for page in ("trees/dataset.html", "trees-first/report.html", "trees-evaluated/evaluation.html"):
        assert (build / page).exists(), page
