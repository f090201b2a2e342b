"""A run on seekable shards is the run on untouched ones, bit for bit."""

import zipfile
from pathlib import Path

import pytest
import torch
from conftest import events
from fleet import Fleet
from safetensors.torch import load_file

from tests.unit.data import jpegs
from tests.unit.data.test_decode import built
from trainyard.prepare.build import build
from trainyard.prepare.rewriting import REWRITTEN
from trainyard.prepare.settings import parse
from trainyard.shards import manifest as manifests

__all__ = ["built"]
pytestmark = pytest.mark.takes(15)
CLASSES, COUNT = 4, {"train": 40, "val": 12}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, built: None) -> dict[bool, Path]:
    """The same pictures of several kinds and sizes, prepared with and without."""
    folder = tmp_path_factory.mktemp("both")
    kinds = [(sampling, kind) for sampling in ("4:2:0", "4:4:4", "4:4:0", "grey") for kind in "bp"]
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for split, count in COUNT.items():
            for number in range(count):
                sampling, kind = kinds[number % len(kinds)]
                data = jpegs.encoded(90 + number, 131 - number, sampling, 60 + number, kind=kind)
                archive.writestr(f"{split}/class{number % CLASSES}/{number}.jpg", data)
    found = {}
    for seekable in (False, True):
        found[seekable] = folder / str(seekable) / "little"
        settings = {"source": {"kind": "path", "path": str(folder / "a.zip")}, "layout": "imagefolder"}
        build(parse({**settings, "out": str(found[seekable]), "seekable": seekable}))
    return found


def test_losses_and_weights_are_equal_bit_for_bit(both: dict[bool, Path], fleet: Fleet, tmp_path: Path) -> None:
    assert manifests.load(both[True]).seekable == {REWRITTEN: sum(COUNT.values())}
    runs = {
        seekable: fleet.train(
            tmp_path / str(seekable), 2, **{"data.dir": str(folder), "data.image_size": 24, "data.val_resize": 0}
        )
        for seekable, folder in both.items()
    }
    losses = {seekable: [event["loss"] for event in events(run, "train")] for seekable, run in runs.items()}
    assert len(losses[True]) == 2 * COUNT["train"] / 8
    assert losses[True] == losses[False]
    weights = [load_file(run / "published/model.safetensors") for run in runs.values()]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
