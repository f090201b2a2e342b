"""FSDP: what a rank keeps, which parts a model has, what it computes with, how a run that fails resumes."""

from pathlib import Path

import pytest
import torch
from conftest import events
from faulted import ENDLESS, SETTINGS, assert_ends, assert_one_fails, assert_same
from fleet import Fleet
from inside_ranks import WIDTH, settings
from little_models import Blocks, Net
from torch import nn

MODEL_MIB = 8 * WIDTH * WIDTH * 4 >> 20


def test_a_ranks_memory_falls_with_the_ranks(fleet: Fleet, tmp_path: Path) -> None:
    kept, most = {}, {}
    for world in (2, 4):
        ranks = fleet.inside(tmp_path, world, "parts")
        kept[world], most[world] = (max(rank[key] for rank in ranks) for key in ("kept", "most"))
        assert kept[world] == pytest.approx(2 * MODEL_MIB / world, rel=0.05)  # weights and momentum
    assert most[2] - most[4] > 0.8 * 3 * MODEL_MIB / 4  # weights, gradients and momentum: a quarter less of each


def test_bf16_is_computed_with_and_fp32_kept(fleet: Fleet, tmp_path: Path) -> None:
    first, second = fleet.inside(tmp_path, 2, "mixed")
    assert first == second
    assert (first["kept"], first["computed"]) == (["torch.float32"], ["torch.bfloat16"])
    assert first["losses"][-1] < first["losses"][0]
    assert first["meshes"] == ["cpu 2"]  # the configured device, also where there is a GPU


def test_a_run_that_fails_resumes_to_the_same_bits(fleet: Fleet, tmp_path: Path) -> None:
    """Every rank holds a part of the weights, so a checkpoint and validation are collective, too."""
    over = {"strategy": "fsdp"}
    undisturbed = fleet.train(tmp_path / "calm", 2, **SETTINGS, **over)
    run = tmp_path / "run"
    for fault in ("forward cuda 1 4", "copied stale 0 1", "validating cuda 1 1"):
        assert_one_fails(fleet, run, fault, **ENDLESS, **over)
    assert_ends(fleet, run, "", [0, 0], **ENDLESS, **over)
    assert [event["step"] for event in events(run, "resume")][:2] == [2, 2]
    assert_same(run, undisturbed)


def test_parts_are_the_repeated_blocks_and_large_layers() -> None:
    import torchvision

    from trainyard.parallel.blocks import blocks

    with torch.device("meta"):
        resnet, large = torchvision.models.resnet50(), torchvision.models.vgg11()
    kinds = [type(part).__name__ for part in blocks(resnet)]
    assert kinds == ["Bottleneck"] * 16 + ["Linear"]
    vgg = blocks(large)
    assert sum(p.numel() for part in vgg for p in part.parameters()) > 0.95 * 132_863_336
    assert len(blocks(Blocks(4))) == 3
    assert len(blocks(Net(4))) == 2
    assert blocks(nn.Linear(2, 2)) == []


def test_types_of_weights_and_sums() -> None:
    from trainyard.parallel.fsdp import policy

    def types(**over: str) -> tuple[torch.dtype | None, torch.dtype | None]:
        chosen = settings(**over)
        found = policy(chosen.precision, chosen.comm)
        return found.param_dtype, found.reduce_dtype

    assert types(precision="fp32") == (None, torch.float32)
    assert types(precision="fp64") == (None, torch.float64)
    assert types(precision="bf16") == (torch.bfloat16, torch.float32)
    assert types(precision="bf16", **{"comm.compression": "bf16"}) == (torch.bfloat16, torch.bfloat16)
    assert types(precision="fp32", **{"comm.gradients": "fp64"}) == (None, torch.float64)
