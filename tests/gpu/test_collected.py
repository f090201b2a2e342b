"""The tables of the GPU pages: drawn from results, as they were sent; and the counts of the arithmetic beside them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import arithmetic, check, collected

ROOT = Path(__file__).parents[2]
COMMIT = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True, capture_output=True, check=True)


def sent(folder: Path, name: str, gpu: str = "NVIDIA H100 80GB HBM3", failed: bool = False, **source: str) -> None:
    """Write a result as the harness would."""
    commit = COMMIT.stdout.strip()
    rates = {"speed": {"ours, generated pictures": 4321.0, "ours, JPEGs": 4200.4},
             "speed_compiled": {"ours, generated pictures, compiled": 5432.1}}  # fmt: skip
    parts: list[dict[str, Any]] = []
    for part, rows in rates.items():
        found = [{"name": row, "state": "ok", "text": "", "rate": rate} for row, rate in rows.items()]
        if failed and part == "speed":
            found.append({"name": "ours | timm", "state": "failed", "text": "0.90"})
        parts.append({"name": part, "state": check.state_of(found), "seconds": 1.0, "rows": found})
    result: dict[str, Any] = {
        "format": check.FORMAT, "time": 1_790_000_000.0, "asked": list(rates), "rows": check.count_states(parts),
        "machine": {"gpu": gpu, "device": "cuda", "driver": "580.1", "versions": {"torch": "2.11.0"}},
        "source": {"commit": commit, "sha256": check.hash_of_commit(commit, ROOT), **source}, "parts": parts,
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps({**result, "sha256": check.digest(result)}))


def test_what_was_sent_is_drawn(tmp_path: Path) -> None:
    sent(tmp_path, "two", gpu="NVIDIA H200", failed=True)
    sent(tmp_path, "one")
    found = collected.results(tmp_path, ROOT)
    first, second = list(collected.draw_collected(found))[2:]
    assert first.startswith("| NVIDIA H100 80GB HBM3 | 580.1, 2.11.0 | ")
    assert first.endswith(" | 3 ok | 4,321, 5,432, 4,200 | nothing |")
    assert second.endswith("| 1 failed, 3 ok | 4,321, 5,432, 4,200 | speed, ours \\| timm |")
    rates = [line.split(" | ") for line in collected.draw_rates(found)]
    measured = {(cells[0].strip("| "), cells[1]): cells[-1].strip("| ") for cells in rates[2:]}
    assert measured["H100 SXM", "eager"] == "4,321"
    assert measured["H200", "compiled"] == "5,432"
    assert measured["A100 40 GB", "eager"] == "not yet"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"commit": ""}, "its programs are"),
        ({"sha256": "0" * 64}, "has others"),
        ({"commit": "a-dirty", "sha256": "0" * 64}, "changed"),
    ],
)
def test_programs_that_nobody_knows_are_not_drawn(tmp_path: Path, source: dict[str, str], said: str) -> None:
    sent(tmp_path, "one", **source)
    with pytest.raises(check.WrongError, match=said):
        collected.results(tmp_path, ROOT)


def test_pages_are_drawn_between_their_marks_and_compared(tmp_path: Path) -> None:
    for name in ("benchmarks", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    page = tmp_path / "docs" / "gpu-speed.md"
    page.write_text(page.read_text().replace("not yet", "9,999"))

    def call(*words: str) -> int:
        return subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.collected", *words], cwd=tmp_path, check=False
        ).returncode

    assert call("--check") == 1
    assert "9,999" in page.read_text()
    assert call() == 0
    assert call("--check") == 0
    assert page.read_text() == (ROOT / "docs" / "gpu-speed.md").read_text()


def test_counts_are_those_of_torchvisions_model() -> None:
    import torchvision
    from torch import nn

    model = torchvision.models.resnet50().to("meta")
    seen = {"inputs": 0, "outputs": 0, "multiplications": 1000 * 2048, "relu": 0, "added": 0}

    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            seen["inputs"] += inputs[0].numel()
            seen["outputs"] += output.numel()
            seen["multiplications"] += output.numel() * module.weight[0].numel()
        seen["relu"] += output.numel() if isinstance(module, nn.ReLU) else 0
        seen["added"] += output.numel() if isinstance(module, torchvision.models.resnet.Bottleneck) else 0

    for module in model.modules():
        module.register_forward_hook(hook)
    model(torch.empty(1, 3, 224, 224, device="meta"))
    found = list(arithmetic.convolutions())
    assert len(found) == 53
    assert sum(conv.inputs for conv in found) == seen["inputs"]
    assert sum(conv.outputs for conv in found) == seen["outputs"]
    assert sum(conv.outputs for conv in found if conv.relu) == seen["relu"]
    assert sum(conv.outputs for conv in found if conv.added) == seen["added"]
    assert arithmetic.flop() == 6.0 * seen["multiplications"]
    page = (ROOT / "docs" / "gpu-speed.md").read_text()
    for key in ("inputs", "outputs", "relu", "added"):
        assert f"| {seen[key] / 1e6:.2f} |" in page, key
    for compiled in (False, True):
        assert f"{arithmetic.megabytes(compiled):.0f} MB" in page
