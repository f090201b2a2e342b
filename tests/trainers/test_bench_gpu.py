"""The benchmark for machines with a GPU: its code runs here too, on tiny sizes; without a GPU it says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, environment

pytestmark = pytest.mark.takes(25)


def bench(out: Path, *options: str) -> str:
    command = [sys.executable, "scripts/bench/gpu.py", str(out), *options]
    return subprocess.run(command, cwd=ROOT, env=environment(), text=True, check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_skipped(tmp_path: Path) -> None:
    assert bench(tmp_path / "gpu.json") == "skipped: no GPU that this torch can use\n"
    assert not (tmp_path / "gpu.json").exists()


def test_all_of_it_runs(tmp_path: Path) -> None:
    out = bench(tmp_path / "gpu.json", "--device", "cpu", "--smoke")
    rows = json.loads((tmp_path / "gpu.json").read_text())
    ours = [f"resnet18, fp32, batch 2: ours, {data}" for data in ("generated pictures", "JPEGs from shards")]
    peers = ["torchvision's reference step", "timm's step"]
    assert [(row["name"], row["peer_name"]) for row in rows] == [(name, peer) for name in ours for peer in peers]
    assert all(row["ratio"] > 0 for row in rows)
    for word in ("GiB", "record", "time split", "smoke"):
        assert word in out
    assert list(tmp_path.iterdir()) == [tmp_path / "gpu.json"]
