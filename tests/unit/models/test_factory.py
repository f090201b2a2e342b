"""Models from torchvision, timm and the user's own code; initialisation, heads, pretrained weights, BatchNorm."""

import copy
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from trainyard import config
from trainyard.core.exits import UserError
from trainyard.models import factory
from trainyard.models.batch_norm import BatchNorm, replace_batch_norm


def test_models_by_name() -> None:
    net = factory.create("resnet18", 7)
    assert net.state_dict()["fc.weight"].shape == (7, 512)
    assert type(factory.create("torchvision:resnet18", 7)) is type(net)
    factory.zero_init_last_bn(net)
    assert not net.state_dict()["layer1.0.bn2.weight"].any()
    assert net.state_dict()["layer1.0.bn1.weight"].all()
    for name, said in [
        ("resnt18", "did you mean resnet18"), ("nowhere:f", "cannot be imported"),
        ("math:nothing", "cannot be imported"), ("little_models:not_a_model", "returned Tensor"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=said):
            factory.create(name, 3)


def test_convolutions_start_from_hes_distribution() -> None:
    net = nn.Sequential(nn.Conv2d(64, 16, 3), nn.Conv2d(16, 64, 3))
    for mode, fans in (("fan_in", (64, 16)), ("fan_out", (16, 64))):
        factory.init_convolutions(net, mode)  # type: ignore[arg-type]
        for layer, fan in zip(net, fans, strict=True):
            assert float(layer.weight.detach().std()) == pytest.approx(math.sqrt(2 / (9 * fan)), rel=0.05)


@pytest.mark.parametrize("total", [None, lambda tensor: tensor.clone()])
def test_batch_norm_is_torchs(total: Any) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)).double()
    ours = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)).double()
    ours.load_state_dict(plain.state_dict())
    replace_batch_norm(ours, total)
    assert list(ours.state_dict()) == list(plain.state_dict())
    for _ in range(3):
        pictures = torch.randn(4, 3, 6, 6, dtype=torch.float64)
        for net in (plain, ours):
            net.zero_grad()
            net(pictures).pow(3).sum().backward()
        for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-9)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)
    ours.eval()
    plain.eval()
    torch.testing.assert_close(ours(pictures), plain(pictures))


@pytest.mark.parametrize("count", [0, 1])
def test_batch_norm_survives_fewer_than_two_values(count: int) -> None:
    net = nn.Sequential(nn.BatchNorm2d(3))
    replace_batch_norm(net, None)
    before = net.state_dict()["0.running_mean"].clone()
    out = net(torch.randn(count, 3, 1, 1, requires_grad=True))
    out.sum().backward()
    assert out.shape == (count, 3, 1, 1)
    assert all(torch.isfinite(parameter.grad).all() for parameter in net.parameters() if parameter.grad is not None)
    assert torch.equal(net.state_dict()["0.running_mean"], before)


def test_a_forward_without_any_sample_teaches_global_batch_norm_nothing() -> None:
    """On a ragged batch the last forwards of a step may be empty on all processes."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, affine=False)).double()
    replace_batch_norm(net, lambda tensor: tensor.clone())
    net(torch.randn(4, 3, 2, 2, dtype=torch.float64)).sum().backward()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    out = net(torch.randn(0, 3, 2, 2, dtype=torch.float64, requires_grad=True))
    out.sum().backward()
    assert out.shape == (0, 3, 2, 2)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(
        torch.equal(p.grad, grad) for p, grad in zip(net.parameters(), gradients, strict=True) if p.grad is not None
    )


TIMM_WITH_ACTIVATIONS = "timm:test_efficientnet"  # 0.1 million parameters; its BatchNorm includes an activation


def test_timm_models_with_their_own_batch_norm_compute_the_same() -> None:
    torch.manual_seed(0)
    theirs = factory.create(TIMM_WITH_ACTIVATIONS, 7, 64).double()
    ours = copy.deepcopy(theirs)
    replace_batch_norm(ours, lambda tensor: tensor.clone())
    assert sum(isinstance(module, BatchNorm) for module in ours.modules()) > 5
    assert list(ours.state_dict()) == list(theirs.state_dict())
    pictures = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    for net in (theirs, ours):
        torch.manual_seed(1)
        net(pictures).square().sum().backward()
    for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)
    torch.testing.assert_close(ours.eval()(pictures), theirs.eval()(pictures))


def test_a_batch_norm_that_cannot_be_made_global_is_refused_in_words() -> None:
    class Theirs(nn.BatchNorm2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    net = nn.Sequential(Theirs(3))
    replace_batch_norm(net, None)
    assert type(net[0]) is Theirs
    with pytest.raises(UserError, match=r"model\.batch_norm = 'global': this model's 0 is a Theirs.*set it to local"):
        replace_batch_norm(net, lambda tensor: tensor)


def test_picture_and_head_have_the_size_of_the_settings() -> None:
    timm_vit = factory.create("timm:vit_tiny_patch16_224", 7, 64)
    assert timm_vit(torch.randn(1, 3, 64, 64)).shape == (1, 7)
    with pytest.raises(AssertionError):
        timm_vit(torch.randn(1, 3, 96, 96))
    vit = factory.create("torchvision:vit_b_32", 7, 64)
    assert (vit.image_size, vit.state_dict()["heads.head.weight"].shape[0]) == (64, 7)  # type: ignore[union-attr]
    sized = factory.create("little_models:sized", 5, 48)
    assert (sized.image_size, sized.fc.out_features) == (48, 5)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("timm:vit_tiny_patch16_224", "img_size"), ("torchvision:vit_b_32", "image_size"), ("maxvit_t", "input_size"),
        ("little_models:sized", "image_size"),
    ],
)  # fmt: skip
def test_a_model_of_one_size_is_not_trained_with_several(name: str, key: str) -> None:
    base = {"data": {"dir": "synthetic", "size_start": 32}, "epochs": 1, "batch": {"global": 8}}
    settings = config.build(base, {"model": {"name": name}})
    with pytest.raises(UserError, match=rf"data.size_start = 32 with model.name = '{name}'.*\(its parameter {key}\)"):
        factory.build(settings.model, settings.data, 1, 4, dtype=torch.float32, total=None)


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("timm:resnt50", 64, "timm .* has no such model; did you mean resnet50"),
        ("vit_b_16", 65, "cannot be made .*perhaps it takes images of another data.image_size"),
        ("inception_v3", 299, "auxiliary outputs"),
    ],
)
def test_models_that_cannot_be_made_are_refused_in_words(name: str, size: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        factory.create(name, 3, size)


def test_without_timm_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # what Python does when it is not there
    with pytest.raises(UserError, match=r"'timm:resnet10t': timm is not installed .*pip install timm"):
        factory.create("timm:resnet10t", 3)


def built(**settings: Any) -> nn.Module:
    merged = {"name": "little_models:net", "num_classes": 4, **settings}
    run = config.build({"recipe": "demo", "model": {"zero_init_last_bn": False}}, {"model": merged})
    return factory.build(run.model, run.data, run.seed, merged["num_classes"], dtype=torch.float32, total=None)


def test_a_compiled_models_batch_norm_leaves_kernels_to_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchNorm, "_global_by_kernels", BatchNorm._global_by_kernels)  # as it was, afterwards
    built(compile=True)
    kept_out: Any = BatchNorm._global_by_kernels
    assert kept_out._torchdynamo_disable


@pytest.mark.parametrize("kind", ["pth", "safetensors", "ddp", "nested"])
def test_pretrained_weights_are_loaded(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(99)
    weights = {name: torch.rand_like(value.float()).to(value.dtype) for name, value in built().state_dict().items()}
    path = tmp_path / f"model.{kind if kind == 'safetensors' else 'pth'}"
    if kind == "safetensors":
        save_file(weights, path)
    else:
        state = {("module." if kind == "ddp" else "") + name: value for name, value in weights.items()}
        torch.save({"model": state, "epoch": 3} if kind == "nested" else state, path)
    net = built(pretrained=str(path))
    for name, value in net.state_dict().items():
        assert torch.equal(value, weights[name]), name

    with pytest.raises(
        UserError, match=r"model\.pretrained = .*fc\.bias: 4 in place of 9.*set model\.pretrained_head to auto"
    ):
        built(pretrained=str(path), num_classes=9, pretrained_head="keep")
    for classes, head in ((9, "auto"), (9, "drop"), (4, "drop")):
        other = built(pretrained=str(path), num_classes=classes, pretrained_head=head)
        fresh = built(num_classes=classes)
        for name, value in other.state_dict().items():
            assert torch.equal(value, fresh.state_dict()[name] if name.startswith("fc.") else weights[name]), name
    del weights["body.0.weight"]
    torch.save(weights, tmp_path / "part.pth")
    for head in ("keep", "drop"):
        with pytest.raises(UserError, match=r"1 of the model's 14 names are missing in it \(body\.0\.weight\)"):
            built(pretrained=str(tmp_path / "part.pth"), pretrained_head=head)


def test_pretrained_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("no weights")
    (tmp_path / "text.safetensors").write_text("no weights")
    torch.save([1, 2], tmp_path / "list.pth")
    for name in ("text.pth", "text.safetensors", "list.pth", "missing.pth", "missing.safetensors"):
        with pytest.raises(UserError, match=rf"model\.pretrained = .*{name}"):
            built(pretrained=str(tmp_path / name))
