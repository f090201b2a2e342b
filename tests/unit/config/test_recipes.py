"""Each recipe, exactly: learning rates by step, parameter groups and initial weights of the real ResNet-50, docs."""

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, events
from fleet import Fleet
from safetensors.torch import load_file
from torch import nn

from trainyard import config
from trainyard.config import Config
from trainyard.config.sections.data import AugmentSettings
from trainyard.core.exits import UserError
from trainyard.data.sampler import Length
from trainyard.data.sizes import size_of
from trainyard.models import factory
from trainyard.training import optimizer as optimizers
from trainyard.training.ema import decay_of

IMAGENET = 1_281_167
RESNETS = [name for name in config.recipe_names() if name.startswith("resnet50-")]


@cache
def recipe(name: str) -> Config:
    return config.build({"recipe": name}, {"data": {"dir": "/data"}})


def rate(settings: Config, batch: float, length: Length, step: int) -> float:
    return optimizers.learning_rate(settings.schedule, settings.optimizer, batch, length, step)


def rates(name: str, *steps: int) -> list[float]:
    """Learning rates of steps of a run on ImageNet."""
    settings = recipe(name)
    batch = settings.batch.global_ or 0
    per_epoch = -(-IMAGENET // batch)
    length = Length(per_epoch * (settings.epochs or 0), per_epoch)
    return [rate(settings, batch, length, step % length.steps) for step in steps]


def test_goyal_step_by_step() -> None:
    """157 steps per epoch; 785 of warmup from 0.1 to 3.2, then a tenth at epochs 30, 60 and 80."""
    assert rates("resnet50-90", 0, 1, 392, 784, 785) == pytest.approx(
        [0.1, 0.1 + 3.1 / 785, 0.1 + 3.1 * 392 / 785, 3.2 - 3.1 / 785, 3.2]
    )
    borders = [epoch * 157 + offset for epoch in (30, 60, 80) for offset in (-1, 0)]
    assert rates("resnet50-90", *borders, -1) == pytest.approx([3.2, 0.32, 0.32, 0.032, 0.032, 0.0032, 0.0032])


def test_nvidia_epoch_by_epoch() -> None:
    """626 steps per epoch, one rate for all of them; 2.048 after 8 epochs, cosine over the 82 others."""
    assert recipe("resnet50-nvidia-90").optimizer.weight_decay == 1 / 32768
    by_epoch = [rates("resnet50-nvidia-90", 626 * epoch, 626 * epoch + 625) for epoch in range(90)]
    assert all(first == last for first, last in by_epoch)
    expected = [2.048 * (epoch + 1) / 8 for epoch in range(8)]
    expected += [2.048 * 0.5 * (1 + math.cos(math.pi * epoch / 82)) for epoch in range(82)]
    assert [first for first, _ in by_epoch] == pytest.approx(expected)
    assert expected[49] == pytest.approx(1.024)


def test_a3_step_by_step() -> None:
    """626 steps per epoch; 3,130 of warmup from 1e-4 to 8e-3, then a cosine to 1e-6 over the other 59,470."""
    assert rates("resnet50-a3", 0, 1, 1565, 3130) == pytest.approx([1e-4, 1e-4 + 7.9e-3 / 3130, 4.05e-3, 8e-3])
    half = 3130 + 59_470 // 2
    assert rates("resnet50-a3", half, -1) == pytest.approx(
        [(8e-3 + 1e-6) / 2, 1e-6 + (8e-3 - 1e-6) * 0.5 * (1 + math.cos(math.pi * 59_469 / 59_470))]
    )


def test_ffcvs_step_by_step() -> None:
    """313 steps per epoch; 626 of warmup from 1.7e-4 to 1.7, then a line to 0 over the other 5,008."""
    assert rates("resnet50-18", 0, 313, 626) == pytest.approx([1.7e-4, (1.7e-4 + 1.7) / 2, 1.7])
    assert rates("resnet50-18", 626 + 2504, -1) == pytest.approx([0.85, 1.7 / 5008])


@pytest.mark.parametrize(("epochs", "small"), [(16, 12), (18, 14)])
def test_ffcvs_images_are_small_for_most_of_the_run(epochs: int, small: int) -> None:
    """In its configuration of 16 epochs, and here; validation's are larger than training's."""
    data = recipe("resnet50-18").data
    assert [size_of(data, epoch, epochs) for epoch in range(epochs)] == [160] * small + [192] * 4
    assert data.val_sizes == (256, round(256 / (224 / 256)))


def test_v2_is_torchs_linear_and_cosine_schedulers_in_sequence() -> None:
    """All 600 epochs against what torchvision's reference script builds."""
    from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    warmup = LinearLR(optimizer, start_factor=0.01, total_iters=5)
    reference = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, T_max=595)], milestones=[5])
    per_epoch = -(-IMAGENET // 1024)
    for epoch in range(600):
        first, last = rates("resnet50-v2", per_epoch * epoch, per_epoch * epoch + per_epoch - 1)
        assert first == last == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6, abs=1e-9)
        optimizer.step()
        reference.step()
    assert decay_of(recipe("resnet50-v2").ema, 1024, 600) == pytest.approx(1 - 2e-5 * 1024 * 32 / 600)


def test_cosine_per_step_and_per_epoch() -> None:
    length = Length(steps=100, steps_per_epoch=10)
    base = {"data": {"dir": "synthetic"}, "epochs": 10, "batch": {"global": 256}}
    smooth = config.build(base, {"schedule": {"warmup_epochs": 2}})
    assert rate(smooth, 256, length, 0) == pytest.approx(0.1 / 20)
    assert rate(smooth, 256, length, 19) == pytest.approx(0.1)
    assert rate(smooth, 256, length, 60) == pytest.approx(0.05)
    assert rate(smooth, 512, length, 60) == pytest.approx(0.1)  # linear scaling
    stairs = config.build(base, {"schedule": {"warmup_epochs": 2, "every": "epoch"}})
    values = [rate(stairs, 256, length, step) for step in range(100)]
    assert values[0:10] == [pytest.approx(0.05)] * 10
    assert values[10:20] == [pytest.approx(0.1)] * 10
    assert values[50:60] == [pytest.approx(0.05 * (1 + math.cos(math.pi * 3 / 8)))] * 10


@pytest.mark.parametrize("name", RESNETS)
def test_groups_and_start_of_the_real_resnet50(name: str) -> None:
    """ResNet-50 has 53 convolutions with a BatchNorm each, and a linear layer: 161 parameters, 25,557,032 numbers."""
    settings = recipe(name)
    net = factory.build(settings.model, settings.data, settings.seed, 1000, dtype=torch.float32, total=None)
    groups = [
        (group["weight_decay"], len(group["params"]))
        for group in optimizers.build(net, settings.optimizer).param_groups
    ]
    decay, plain = settings.optimizer.weight_decay, 106 + (name == "resnet50-a3")
    assert groups == [(decay, 161 - plain), (0.0, plain)]
    assert sum(parameter.numel() for parameter in net.parameters()) == 25_557_032

    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 53
    for layer in convolutions:
        channels = layer.in_channels if name == "resnet50-nvidia-90" else layer.out_channels
        expected = math.sqrt(2 / (channels * layer.kernel_size[0] * layer.kernel_size[1]))
        assert float(layer.weight.detach().std()) == pytest.approx(expected, rel=0.05)
    state = net.state_dict()
    zero = [key for key, value in state.items() if key.endswith("weight") and not value.any()]
    last = [
        f"layer{stage}.{block}.bn3.weight" for stage, blocks in enumerate((3, 4, 6, 3), 1) for block in range(blocks)
    ]
    assert zero == (last if name in ("resnet50-90", "resnet50-a3") else [])
    # PyTorch's own start of a linear layer is uniform within 1 / sqrt(2048)
    head = 0.01 if name == "resnet50-90" else 1 / math.sqrt(3 * 2048)
    assert float(state["fc.weight"].std()) == pytest.approx(head, rel=0.02)
    assert bool(state["fc.bias"].any()) == (name != "resnet50-90")


def test_weight_decay_groups_by_kind() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    base = {"data": {"dir": "synthetic"}, "epochs": 1, "batch": {"global": 8}}

    def sizes(**settings: object) -> list[int]:
        return [len(group) for group in optimizers.split(net, config.build(base, {"optimizer": settings}).optimizer)]

    assert [sizes(no_decay=kinds) for kinds in ([], ["norm"], ["bias"], ["norm", "bias"])] == [
        [6, 0], [4, 2], [4, 2], [2, 4]
    ]  # fmt: skip
    factory.replace_batch_norm(net, None)
    assert sizes() == [2, 4]


def test_augment_defaults_are_those_of_imagenet() -> None:
    assert (AugmentSettings().scale, AugmentSettings().ratio) == ([0.08, 1.0], [3 / 4, 4 / 3])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"optimizer": {"name": "lamb"}}, "optimizer.nesterov = True with optimizer.name = 'lamb': it belongs to sgd"),
        (
            {"optimizer": {"betas": [0.5, 0.9]}},
            "optimizer.betas = [0.5, 0.9] with optimizer.name = 'sgd': it belongs to lamb",
        ),
        (
            {"optimizer": {"momentum": 0}},
            "optimizer.nesterov = True with optimizer.momentum = 0.0: there is no momentum",
        ),
        ({"loss": {"bce_threshold": 0.2}}, "loss.bce_threshold = 0.2 with loss.name = 'cross_entropy': only bce"),
        (
            {"loss": {"name": "bce", "bce_threshold": 0.2, "label_smoothing": 0.1}},
            "loss.label_smoothing = 0.1 with loss.bce_threshold = 0.2",
        ),
        ({"augment": {"mixup": 0.2}, "batch": {"micro": 1}}, "batch.micro = 1 with augment.mixup"),
        (
            {"augment": {"cutmix": 1.0}, "batch": {"per_process": 1}},
            "a batch of 1 with augment.mixup or augment.cutmix",
        ),
        ({"augment": {"policy": "rand_increasing", "policy_magnitude": 11}}, "augment.policy_magnitude = 11 with"),
        ({"data": {"val_image_size": 48}}, "data.val_resize = 32: smaller than the 48 pixels cut out of it"),
        ({"ema": {"every_steps": 4}}, "ema.decay = 0.0: no average is kept"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(override: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        config.build({"recipe": "demo"}, override)
    assert said in str(caught.value)


LITTLE: dict[str, dict[str, Any]] = {
    "resnet50-a3": {"optimizer.lr": 0.05, "optimizer.clip_norm": 0.05, "augment.scale": [0.5, 1.0]},
    "resnet50-v2": {
        # with BatchNorm, what shares a forward would depend on the number of processes
        "model.name": "little_models:groups", "batch.micro": 3, "augment.repeats": 3, "augment.erase": 0.5,
        "optimizer.lr": 0.05, "ema.decay": 0.9, "ema.adjust": "none", "ema.every_steps": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "world"), [("trainers.ddp", 3), pytest.param("trainers.hvd", 2, marks=pytest.mark.root)]
)
@pytest.mark.parametrize("name", list(LITTLE))
def test_a_recipe_in_small_trains_the_same_on_any_number_of_processes(
    name: str, module: str, world: int, fleet: Fleet, tmp_path: Path
) -> None:
    """Its augmentation, loss, optimizer and average, on pictures of 16 pixels; ragged batches of odd size."""
    sections = ("augment", "loss", "optimizer", "ema", "schedule")
    tree = config.read_recipe(name)
    over = {f"{section}.{key}": value for section in sections for key, value in tree.get(section, {}).items()}
    over |= {"batch.global": 9, "optimizer.lr_batch": 9, "checkpoint.every_steps": 0, **LITTLE[name]}
    runs = [fleet.train(tmp_path / "alone", 1, **over), fleet.train(tmp_path / "several", world, module, **over)]
    alone, several = [[event["loss"] for event in events(run, "train")] for run in runs]
    assert several == pytest.approx(alone, rel=0, abs=1e-12)
    alone, several = [load_file(run / "published" / "model.safetensors") for run in runs]
    for key, value in alone.items():
        torch.testing.assert_close(several[key], value, rtol=0, atol=1e-12)


def test_precision_is_the_sources_and_the_cores_are_used() -> None:
    """Goyal and torchvision's script computed in fp32; the figures of NVIDIA, timm and ffcv are of mixed precision."""
    found = {name: recipe(name).precision for name in RESNETS}
    assert found == {
        "resnet50-18": "bf16", "resnet50-90": "fp32", "resnet50-a3": "bf16", "resnet50-nvidia-90": "bf16",
        "resnet50-v2": "fp32",
    }  # fmt: skip
    assert all(recipe(name).data.workers == 0 for name in RESNETS)


@pytest.mark.parametrize("name", RESNETS)
def test_a_recipe_says_where_it_comes_from_and_that_it_was_not_rerun(name: str) -> None:
    header = (ROOT / "src/trainyard" / "recipes" / f"{name}.yaml").read_text().split("\nmodel:")[0].replace("\n# ", " ")
    top1 = re.search(r"Published: ([\d.]+) % top-1", header)
    assert top1
    assert "Source: " in header
    assert re.search(r"Published (time|speed): ", header)
    assert "Not rerun here" in header
    row = next(line for line in (ROOT / "docs" / "recipes.md").read_text().splitlines() if f"`{name}`" in line)
    assert f"| {top1[1]} |" in row


def test_the_migration_table_names_settings_that_exist() -> None:
    """Every `section.key` in docs/migrating.md is a setting; every flag and metric of the example is there."""
    text = (ROOT / "docs" / "migrating.md").read_text()
    schema = config.schema()["properties"]
    sections = {name for name, node in schema.items() if node["type"] == "object"}
    named = set(re.findall(r"`((?:" + "|".join(sections) + r")\.[a-z_0-9]+)", text))
    assert len(named) > 20
    for key in named:
        section, _, rest = key.partition(".")
        assert rest in schema[section]["properties"], key
    for flag in (
        "batch-size", "epochs", "lr", "momentum", "seed", "log-interval", "data-dir", "model-dir", "interpolation",
        "val-resize-size", "val-crop-size", "train-crop-size", "workers", "wandb-project", "wandb-run", "backend",
        "fp16-allreduce", "use-mixed-precision", "use-adasum", "gradient-predivide-factor",
    ):  # fmt: skip
        assert f"`--{flag}`" in text, flag
    for metric in (
        "perf/rank_samples_per_second", "train/loss", "train/epoch", "train/step", "train/samples_seen",
        "test/loss", "test/epoch", "test/acc1", "test/acc5",
    ):  # fmt: skip
        assert f"`{metric}`" in text, metric


@pytest.mark.parametrize("document", ["recipes", "migrating", "interruptions", "first-model"])
def test_the_configs_of_the_documents_are_sound(document: str, tmp_path: Path) -> None:
    """Each YAML block that is no values file of the chart is a config file that the trainers take."""
    blocks = re.findall(r"```yaml\n(?!global:)(.*?)```", (ROOT / "docs" / f"{document}.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        (tmp_path / "config.yaml").write_text(block)
        base = [{"recipe": "demo"}] if document == "interruptions" else []  # there a few keys of any run
        config.build(*base, config.read_file(tmp_path / "config.yaml"))
