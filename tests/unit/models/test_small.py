"""The small network of the demo is timm's ResNet-18 with other arguments, so what it publishes loads there."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from trainyard import config
from trainyard.models import described, factory, small

NAME = "trainyard.models.small:resnet10"


def test_timm_computes_the_same_from_the_published_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours = factory.create(NAME, 7, 32).eval()
    for tensor in ours.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.1, 0.4)
    settings = config.build({"recipe": "demo"})
    classes = [f"class{label}" for label in range(7)]
    told = described.as_json(described.describe(settings, classes, classes), ours)
    (tmp_path / "config.json").write_text(json.dumps(told))
    save_file(ours.state_dict(), tmp_path / "model.safetensors")

    import timm

    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    for side in (32, 45):
        images = torch.randn(3, 3, side, side)
        with torch.inference_mode():
            torch.testing.assert_close(theirs(images), ours(images), rtol=1e-6, atol=1e-6)
    assert settings.model.name == NAME


def test_blocks_begin_as_their_shortcut() -> None:
    block = small.Block(4, 8, 2).eval()
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(block(x), torch.relu(block.downsample(x)))
