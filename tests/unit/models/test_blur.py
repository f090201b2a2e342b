"""Blur pooling: which layers blur, what they compute, and that a published model still does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Trainer
from published import weights
from torch import nn
from torch.nn import functional

from trainyard.core.exits import UserError
from trainyard.inference.model import open_trained
from trainyard.models import described, factory
from trainyard.models.blur import BlurredConv, BlurredMaxPool, blur_pooling
from trainyard.models.described import Description
from trainyard.run.directory import read_identity


def blurred_by_hand(x: torch.Tensor) -> torch.Tensor:
    """Each pixel from its 3 x 3 neighbours, weights 1 2 1, 2 4 2, 1 2 1 of 16."""
    padded = functional.pad(x, [1, 1, 1, 1])
    rows = padded[:, :, :-2] + 2 * padded[:, :, 1:-1] + padded[:, :, 2:]
    return (rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:]) / 16


@pytest.mark.parametrize(("what", "convs", "pools"), [("none", 0, 0), ("convs", 6, 0), ("all", 6, 1)])
def test_layers_of_the_real_resnet50(what: Any, convs: int, pools: int) -> None:
    """A 3 x 3 and a shortcut in each of three stages; the stem's convolution sees the image. Names stay."""
    with torch.device("meta"):
        net = factory.create("resnet50", 7, blur_pool=what)
        plain = factory.create("resnet50", 7)
    found = [type(module) for module in net.modules()]
    assert (found.count(BlurredConv), found.count(BlurredMaxPool)) == (convs, pools)
    assert list(net.state_dict()) == list(plain.state_dict())


def test_layers_compute_the_blur_and_then_what_they_did() -> None:
    net = nn.Sequential(nn.Conv2d(16, 5, 3, 2, padding=1), nn.MaxPool2d(3, 2, 1)).double()
    conv, x = net[0], torch.randn(2, 16, 11, 8, dtype=torch.float64)
    middle = functional.conv2d(blurred_by_hand(x), conv.weight, conv.bias, 2, 1)  # type: ignore[arg-type]
    expected = blurred_by_hand(functional.max_pool2d(middle, 3, 1, 1))[:, :, ::2, ::2]
    shape = net(x).shape
    blur_pooling(net, "all")
    found = net.double()(x)
    assert found.shape == shape
    torch.testing.assert_close(found, expected)


def test_a_model_that_drops_no_pixels_is_refused_in_words() -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.MaxPool2d(2))
    with pytest.raises(UserError, match=r"model\.blur_pool = .convs.: this model has no layer that it concerns.*none"):
        blur_pooling(net, "convs")
    blur_pooling(net, "all")


def test_what_is_published_blurs_and_no_plain_model_is_said_to_be_it(trainer: Trainer, tmp_path: Path) -> None:
    name = "trainyard.models.small:resnet10"
    over: dict[str, Any] = {
        "data.image_size": 32, "data.val_resize": 32, "model.name": name, "model.batch_norm": "local",
        "precision": "fp32", "max_steps": 2, "epochs": None,
    }  # fmt: skip
    run = trainer.train(tmp_path / "run", **over, **{"model.blur_pool": "all"})
    trained = open_trained(run)
    assert (trained.found.blur_pool, trained.found.timm_name) == ("all", "")
    model = described.rebuild(trained.found, weights(run))
    x = torch.randn(2, 3, 32, 32)
    blurred, plain = factory.create(name, 4, blur_pool="all").eval(), factory.create(name, 4).eval()
    for net in (blurred, plain):
        net.load_state_dict(weights(run))
    with torch.inference_mode():
        assert torch.equal(model(x), blurred(x))
        assert not torch.allclose(model(x), plain(x), atol=1e-3)
    card = (run / "published" / "README.md").read_text()
    assert "local-dir:" not in card
    assert 'blur_pooling(model, "all")' in card
    assert "timm has no model that blurs as this one does" in card

    code, output = trainer.run(run, **{**over, "max_steps": 3})
    assert code == 2
    assert f"model.blur_pool = 'none', but {run} holds a run with 'all'" in output


def test_a_run_of_an_earlier_version_did_not_blur() -> None:
    assert read_identity({"config": {"seed": 1}})["model.blur_pool"] == "none"
    assert read_identity({"config": {}, "identity": {"model.blur_pool": "all"}})["model.blur_pool"] == "all"


def test_descriptions_of_plain_models_are_as_before() -> None:
    plain = Description("resnet50", ["a"], ["A"], 8, 8, 8, [0.5], [0.5], "bilinear", "fp32", None, "auto", 1)
    assert plain.timm_name == "resnet50"
    with torch.device("meta"):
        assert "blur_pool" not in described.as_json(plain, factory.create("resnet18", 1))["trainyard"]
