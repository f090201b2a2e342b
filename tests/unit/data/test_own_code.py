"""The code of docs/data.md, as it stands: a dataset of one's own, one that repeats rare classes, an augmentation."""

import io
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from starting import opened

from tests.documents import ROOT
from trainyard import config
from trainyard.data.splits import Splits

COUNTS = {"train": {"alder": 6, "birch": 2, "cedar": 1}, "val": {"alder": 2, "birch": 1, "cedar": 1}}
COLOURS = {"alder": (200, 0, 0), "birch": (0, 200, 0), "cedar": (0, 0, 200)}


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the page's code as the module `mine`, with a folder of leaves in place of /data/leaves."""
    text = (ROOT / "docs" / "data.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 3
    (tmp_path / "mine.py").write_text("\n\n".join(blocks).replace("/data/leaves", str(tmp_path / "leaves")))
    for split, classes in COUNTS.items():
        for name, count in classes.items():
            folder = tmp_path / "leaves" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                content = io.BytesIO()
                Image.new("RGB", (24, 20), COLOURS[name]).save(content, "JPEG")
                (folder / f"{number}.jpg").write_bytes(content.getvalue())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)


def splits(**settings: object) -> Splits:
    base = {"data.image_size": 16, "epochs": 1, "batch.global": 4, "model.name": "trainyard.models.small:resnet10"}
    return opened(
        config.build(*[config.parse_override(f"{key}={value}") for key, value in {**base, **settings}.items()])
    )


@pytest.mark.parametrize(("function", "each"), [("leaves", {0: 6, 1: 2, 2: 1}), ("balanced", {0: 6, 1: 6, 2: 6})])
def test_the_pages_datasets(code: None, function: str, each: dict[int, int]) -> None:
    found = splits(**{"data.dataset": f"mine:{function}"})
    assert found.class_names == ["alder", "birch", "cedar"]
    for loader, expected in ((found.train, each), (found.val, {0: 2, 1: 1, 2: 1})):
        batch = next(loader.batches([(0, np.arange(len(loader.labels)))]))
        assert Counter(batch.labels.tolist()) == expected
        assert torch.equal(batch.images.float().mean((2, 3)).argmax(1), batch.labels)


def test_the_pages_augmentation_and_the_key_that_leaves_it_alone(code: None) -> None:
    own = {
        "data.dataset": "mine:balanced",
        "augment.function": "mine:grey_at_times",
        "augment.crop": "none",
        "augment.flip": 0,
    }
    images = torch.cat([batch.images for batch in splits(**own).train.batches((e, np.arange(18)) for e in range(9))])
    spread = images.float().mean((2, 3)).amax(1) - images.float().mean((2, 3)).amin(1)
    grey = (spread < 1).float().mean().item()
    assert 0.03 < grey < 0.25, "one of ten"
    assert spread[spread > 1].min() > 150, "the others are as they were"
