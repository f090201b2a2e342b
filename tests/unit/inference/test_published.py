"""What a run publishes is a model: timm, plain torchvision, torch.export and ONNX Runtime compute the same with it."""

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Trainer
from torch import Tensor, nn

from trainyard import config
from trainyard.core.exits import UserError
from trainyard.models import described, factory
from trainyard.run import export_formats

pytestmark = [pytest.mark.takes(120), pytest.mark.ranks(1)]


@pytest.fixture(scope="module")
def published(fashion_run: Path) -> Path:
    return fashion_run / "published"


def plain(published: Path) -> nn.Module:
    import torchvision  # imported late: it brings torch's compiler

    model = torchvision.models.resnet18(num_classes=10)
    model.load_state_dict(torch.load(published / "model.pth", weights_only=True))
    return model.eval()


def timms(name: str, **how: Any) -> Any:
    """The model that timm makes."""
    import timm  # late, as onnxruntime: each worker that collects this file would take seconds

    return timm.create_model(name, **how)


def difference(model: nn.Module, other: Any, record: Any, name: str) -> float:
    """The largest difference of outputs on some normalised pictures; it is shown after the tests."""
    largest = 0.0
    for count in (1, 3, 8):  # files are of any number of pictures
        pictures = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(count))
        with torch.inference_mode():
            largest = max(largest, float((model(pictures) - torch.as_tensor(other(pictures))).abs().max()))
    record(
        "table", ("published model: largest difference of outputs from plain torchvision's", f"{name}: {largest:.2g}")
    )
    return largest


def test_timm_loads_the_folder(published: Path, record_property: Any) -> None:
    import timm

    model = timms(f"local-dir:{published}", pretrained=True).eval()
    assert difference(plain(published), model, record_property, f"timm {timm.__version__}") == 0
    assert model.pretrained_cfg["label_names"][3] == "n10000003"
    assert model.pretrained_cfg["label_descriptions"]["n10000003"] == "Dress"
    told = timm.data.resolve_model_data_config(model)
    assert list(told["input_size"]) == [3, 32, 32]
    assert told["interpolation"] == "bilinear"
    assert tuple(told["mean"]) == (0.485, 0.456, 0.406)
    resize = timm.data.create_transform(**told).transforms[0]
    assert resize.size == 36  # data.val_resize, by way of crop_pct
    other = timms(f"local-dir:{published}", pretrained=True, num_classes=3)  # as who fine-tunes does
    assert other.get_classifier().out_features == 3
    assert torch.equal(other.conv1.weight, model.conv1.weight)


def test_torch_export_computes_the_same(published: Path, record_property: Any) -> None:
    program = torch.export.load(published / "model.pt2").module()
    assert difference(plain(published), program, record_property, "torch.export") <= 1e-5


def test_onnx_runtime_computes_the_same(published: Path, record_property: Any) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(published / "model.onnx", providers=["CPUExecutionProvider"])

    def run(pictures: Tensor) -> Any:
        return session.run(["logits"], {"pictures": pictures.numpy()})[0]

    name = f"ONNX Runtime {onnxruntime.__version__}"
    assert difference(plain(published), run, record_property, name) <= 1e-4


def test_hashes_are_those_of_all_files(published: Path) -> None:
    wanted = {name: digest for digest, name in map(str.split, (published / "SHA256SUMS").read_text().splitlines())}
    files = {path.name for path in published.iterdir()} - {"SHA256SUMS"}
    assert (
        files
        == {"model.pth", "model.safetensors", "model.pt2", "model.onnx", "config.json", "README.md"}
        == set(wanted)
    )
    assert all(hashlib.sha256((published / name).read_bytes()).hexdigest() == wanted[name] for name in files)
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=published, check=True)


def test_card_says_what_people_ask(published: Path, fashion_run: Path) -> None:
    card = (published / "README.md").read_text()
    summary = json.loads((fashion_run / "summary.json").read_text())
    for said in (
        "library_name: timm", "# fashion\n", f"| top-1 | {summary['top1']:.2f} % |", "torchvision:resnet18, 10 classes",
        "3 steps of 64", "T-shirt/top, Trouser", "a shorter side of 36 pixels, bilinear", "local-dir:", "energy",
        "wall time", f"| version of torch | {torch.__version__} |", "`model.onnx`", "lr: 0.03",
    ):  # fmt: skip
        assert said in card, said


def test_models_said_to_be_timms_too_have_the_same_parameters_there() -> None:
    import torchvision

    for name in described.TIMM_TOO:
        with torch.device("meta"):
            models = torchvision.models.get_model(name, num_classes=5), timms(name, num_classes=5)
        ours, theirs = ({key: value.shape for key, value in model.state_dict().items()} for model in models)
        assert ours == theirs, name


@pytest.mark.parametrize("name", ["resnext50_32x4d", "densenet121"])
def test_models_said_to_be_timms_too_compute_the_same_there(name: str) -> None:
    import torchvision

    ours = torchvision.models.get_model(name, num_classes=5).eval()
    theirs = timms(name, num_classes=5).eval()
    theirs.load_state_dict(ours.state_dict())
    pictures = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(pictures), ours(pictures), rtol=1e-4, atol=1e-4)


def test_timms_crop_comes_out_at_the_pixel() -> None:
    for size in range(16, 400, 3):
        for resize in range(size, 2 * size, 5):
            assert math.floor(size / described.crop_share(size, resize)) == resize


def test_a_model_of_ones_own_says_plainly_what_cannot_load_it(trainer: Trainer, tmp_path: Path) -> None:
    run = trainer.train(tmp_path / "run", epochs=1)
    card = (run / "published" / "README.md").read_text()
    assert "timm has no model with these parameter names" in card
    assert "library_name" not in card
    assert "from little_models import net" in card
    with pytest.raises(RuntimeError, match=r"Unknown model \(little_models:net\)"):
        timms(f"local-dir:{run / 'published'}", pretrained=True)
    found = described.read(run / "published")
    assert (found.model, found.size, found.resize, found.precision) == ("little_models:net", 16, 18, "fp64")
    (run / "published" / "README.txt").write_text("of an earlier version")
    (run / "published" / "model.onnx").write_text("of other weights")
    trainer.train(run, epochs=2)  # what an earlier publication left and this one does not write is gone
    assert not {"README.txt", "model.onnx"} & {path.name for path in (run / "published").iterdir()}
    sums = (run / "published" / "SHA256SUMS").read_text()
    assert hashlib.sha256((run / "published" / "README.md").read_bytes()).hexdigest() in sums


def test_timms_own_models_of_one_size_load_again(tmp_path: Path) -> None:
    settings = config.build(
        {"recipe": "demo"}, {"model": {"name": "timm:vit_tiny_patch16_224", "zero_init_last_bn": False}},
        {"data": {"image_size": 64, "val_resize": 72}},
    )  # fmt: skip
    found = described.describe(settings, ["a", "b"], ["a", "b"])
    model = factory.create(found.model, 2, 64)
    (tmp_path / "config.json").write_text(json.dumps(described.as_json(found, model)))
    torch.save(model.state_dict(), tmp_path / "model.pth")
    again = timms(f"local-dir:{tmp_path}", pretrained=True).eval()
    pictures = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(again(pictures), model.eval()(pictures))
    assert described.read(tmp_path) == found


class Forked(nn.Module):
    """Its way depends on its input, which no exporter can follow."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.sum() > 0 else -x.mean((2, 3))


class Random(nn.Module):
    """Gives other outputs every time."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) + torch.rand(1)


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_an_export_that_fails_or_differs_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=rf"publish\.export has '{kind}', and .* was not published.*weights are publ"):
        export_formats.export_model(kind, Forked(), 16)
    with pytest.raises(UserError, match="outputs differ from the model's by"):
        export_formats.export_model(kind, Random(), 16)


def test_a_failing_export_loses_no_weights(trainer: Trainer, tmp_path: Path) -> None:
    over = {"epochs": 1, "model.name": "little_models:forked"}
    code, output = trainer.run(tmp_path / "run", **over, **{"publish.export": ["torch"]})
    assert code == 2, output
    assert "model.pt2 was not published" in output
    published = tmp_path / "run" / "published"
    assert {path.name for path in published.iterdir()} == {
        "model.pth", "model.safetensors", "config.json", "README.md", "SHA256SUMS",
    }  # fmt: skip
    trainer.train(tmp_path / "run", **over)  # without the export, the run ends well and trains nothing again
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"


def test_what_an_export_needs_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    export_formats.refuse_missing(["torch", "onnx"])
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # what Python does when it is not there
    export_formats.refuse_missing(["torch"])
    with pytest.raises(UserError, match=r"onnxscript is not installed; .*pip install onnxscript.* or remove 'onnx'"):
        export_formats.refuse_missing(["onnx"])
    with pytest.raises(UserError, match=r"publish\.export"):
        config.build({"recipe": "demo"}, {"publish": {"export": ["tflite"]}})


def test_descriptions_that_are_none_are_refused(tmp_path: Path) -> None:
    for text in ("", "{}", '{"pretrained_cfg": {}}', '{"pretrained_cfg": {"input_size": 3}}', "[1]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"config\.json does not describe a model"):
            described.read(tmp_path)
