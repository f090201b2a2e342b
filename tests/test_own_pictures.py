"""docs/own-pictures.md, as a reader follows it: its commands' own text, on real pictures in folders."""

import json
from pathlib import Path

import pytest

from tests import patience
from tests.test_docs import ROOT, blocks
from trainers.prepare.sample import ensure_sample
from trainers.shards.reader import open_split

pytestmark = pytest.mark.takes(60)


def test_the_page_takes_a_folder_of_pictures_to_a_trained_model(tmp_path: Path) -> None:
    shards = open_split(ensure_sample(), "train")
    for i in [i for i in range(1000) if shards.labels[i] < 3]:
        folder = tmp_path / "pictures" / shards.class_names[shards.labels[i]].replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.png").write_bytes(shards.read(i))
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    said = ""
    for block in [one for one in blocks() if one.where.startswith("own-pictures.md")]:
        done = patience.run(["bash", "-euc", block.text], cwd=tmp_path)
        assert done.returncode == 0, f"{block.where}: {done.stdout}{done.stderr}"
        said = done.stdout
    assert said.endswith("parameters\n")
    summary = json.loads((tmp_path / "build/trees-first/summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["world_size"] == 2
    assert summary["top1"] > 50  # of three classes
    assert (tmp_path / "build/trees-first/report.html").exists()
