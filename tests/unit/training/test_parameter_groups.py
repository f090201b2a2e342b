"""Frozen parameters, and learning rates by layer: against timm's own groups, step by step."""

from typing import Any

import pytest
import torch
from torch import nn

from trainyard import config
from trainyard.config.sections.learning import OptimizerSettings
from trainyard.core.exits import UserError
from trainyard.data.sampler import Length
from trainyard.models.factory import create
from trainyard.models.freeze import freeze
from trainyard.training import optimizer as optimizers
from trainyard.training.optimizer import layer_of, learning_rate, set_learning_rate

# Names, as model.name, and the model of timm that has the same parameters
SAME = [
    ("torchvision:resnet50", "resnet50"), ("timm:resnet10t", "resnet10t"), ("timm:test_convnext", "test_convnext"),
    ("timm:vit_tiny_patch16_224", "vit_tiny_patch16_224"),
]  # fmt: skip


def told(groups: list[dict[str, Any]], model: nn.Module) -> dict[str, tuple[float, float]]:
    """Rate and decay of each parameter, by its name."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[p]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}


@pytest.mark.parametrize(("ours", "theirs"), SAME)
def test_rates_and_decays_of_each_step_are_timms(ours: str, theirs: str) -> None:
    """timm's scheduler sets `lr = rate * lr_scale` (timm/scheduler/scheduler.py, update_groups)."""
    import timm
    from timm.optim import param_groups_layer_decay
    from timm.scheduler.cosine_lr import CosineLRScheduler

    settings = config.build(
        {"recipe": "demo", "epochs": 3, "model": {"zero_init_last_bn": False}},
        {"optimizer": {"name": "adamw", "nesterov": False, "lr": 0.01, "lr_batch": 192, "layer_decay": 0.7,
                       "weight_decay": 0.05, "no_decay": ["norm", "bias", "vector", "embedding"]}},
    )  # fmt: skip
    own, other = create(ours, 7, 64), timm.create_model(theirs, num_classes=7)
    optimizer = optimizers.build(own, settings.optimizer)
    groups = param_groups_layer_decay(
        other, weight_decay=0.05, no_weight_decay_list=getattr(other, "no_weight_decay", set)(), layer_decay=0.7
    )
    their = torch.optim.AdamW(groups, 0.01)
    scheduler = CosineLRScheduler(their, 21)
    length = Length(21, 7)
    seen: set[tuple[float, ...]] = set()
    for step in range(21):
        rate = learning_rate(settings.schedule, settings.optimizer, 192, length, step)
        set_learning_rate(optimizer, rate)
        scheduler.update_groups(rate)
        mine, wanted = told(optimizer.param_groups, own), told(their.param_groups, other)
        assert mine.keys() == wanted.keys() == dict(own.named_parameters()).keys()
        for name, (found, decay) in wanted.items():
            assert mine[name] == (pytest.approx(found, rel=1e-12), decay), name
        seen.add(tuple(sorted({rate for rate, _ in mine.values()})))
    assert len(seen) > 10, "the rates follow the schedule"
    assert min(map(len, seen)) > 3, "and differ by layer"


def test_torchvisions_transformer_is_divided_as_timms() -> None:
    ours = layer_of(create("vit_b_32", 7, 32))
    theirs = layer_of(create("timm:vit_base_patch32_224", 7, 32))
    same = {
        "class_token": "cls_token", "encoder.pos_embedding": "pos_embed", "conv_proj.weight": "patch_embed.proj.weight",
        "encoder.ln.weight": "norm.weight", "heads.head.bias": "head.bias",
        **{f"encoder.layers.encoder_layer_{i}.mlp.0.weight": f"blocks.{i}.mlp.fc1.weight" for i in range(12)},
    }  # fmt: skip
    assert {name: ours[name] for name in same} == {name: theirs[other] for name, other in same.items()}
    assert sorted(set(ours.values())) == list(range(14))


def test_models_of_ones_own_are_divided_by_their_blocks() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

    model = nn.Sequential(nn.Linear(4, 4), Block(), nn.BatchNorm1d(4), Block(), nn.LayerNorm(4), nn.Linear(4, 2))
    layers = {name: layer for name, layer in layer_of(model).items() if name.endswith("weight")}
    assert layers == {
        "0.weight": 0,
        "1.linear.weight": 1,
        "2.weight": 2,
        "3.linear.weight": 2,
        "4.weight": 2,
        "5.weight": 3,
    }


def test_the_head_has_its_own_rate() -> None:
    model = create("resnet18", 5)
    told_ = told(optimizers.build(model, OptimizerSettings(lr=0.1, head_lr_scale=10.0)).param_groups, model)
    optimizer = optimizers.build(model, OptimizerSettings(head_lr_scale=10.0, layer_decay=0.5))
    set_learning_rate(optimizer, 0.1)
    rates = {name: rate for name, (rate, _) in told(optimizer.param_groups, model).items()}
    assert told_.keys() == rates.keys()
    assert rates["fc.weight"] == rates["fc.bias"] == pytest.approx(1.0)
    assert rates["layer4.1.conv2.weight"] == pytest.approx(0.05)
    assert rates["conv1.weight"] == pytest.approx(0.1 * 0.5**9)


def test_without_layers_there_are_two_groups_as_ever() -> None:
    groups = optimizers.build(create("resnet18", 5), OptimizerSettings()).param_groups
    assert [(group["weight_decay"], group["lr_scale"]) for group in groups] == [(1e-4, 1.0), (0.0, 1.0)]


def test_embeddings_do_not_decay_where_asked() -> None:
    for name, found in (("vit_b_32", {"class_token", "encoder.pos_embedding"}),
                        ("timm:vit_tiny_patch16_224", {"cls_token", "pos_embed"})):  # fmt: skip
        model = create(name, 5, 32)
        names = {parameter: name for name, parameter in model.named_parameters()}
        lists = [
            optimizers.split(model, OptimizerSettings(no_decay=kinds))
            for kinds in (["norm", "bias"], ["norm", "bias", "embedding"])
        ]
        assert {names[p] for p in lists[0][0]} - {names[p] for p in lists[1][0]} == found


def test_vectors_decay_unless_asked_and_biases_of_embeddings_do_not() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gamma, self.table_bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(2, 4))

        def no_weight_decay(self) -> set[str]:
            return {"table_bias"}

    model = Scaled()
    assert optimizers.split(model, OptimizerSettings()) == ([model.gamma], [model.table_bias])
    assert optimizers.split(model, OptimizerSettings(no_decay=["vector"])) == ([model.table_bias], [model.gamma])
    assert optimizers.split(model, OptimizerSettings(no_decay=["embedding"])) == ([model.gamma], [model.table_bias])


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def frozen(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_the_backbone_is_all_but_the_head() -> None:
    model = small()
    freeze(model, ["backbone"])
    assert frozen(model) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    [decayed, plain] = optimizers.split(model, OptimizerSettings())
    assert [tuple(p.shape) for p in (*decayed, *plain)] == [(2, 16), (2,)]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["conv1", "bn1"], {"conv1.weight", "bn1.weight", "bn1.bias"}),
        (["layer[34].*.bn?.bias"], {f"layer{i}.{j}.bn{k}.bias" for i in (3, 4) for j in (0, 1) for k in (1, 2)}),
        (["layer4.1"], {f"layer4.1.{part}" for part in ("conv1.weight", "conv2.weight", "bn1.weight", "bn1.bias",
                                                        "bn2.weight", "bn2.bias")}),
    ],
)  # fmt: skip
def test_patterns_name_parameters_or_modules(patterns: list[str], expected: set[str]) -> None:
    model = create("resnet18", 3)
    freeze(model, patterns)
    assert frozen(model) == expected


def test_frozen_batch_norms_keep_their_statistics_and_others_do_not() -> None:
    model = nn.Sequential(
        small()[:2], nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 2)
    )
    freeze(model, ["0", "1"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval()
    model.train()
    model(torch.randn(5, 3, 4, 4)).square().sum().backward()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"3.running_mean", "3.running_var", "3.num_batches_tracked"}
    assert {name for name, p in model.named_parameters() if p.grad is None} == frozen(model)


def test_patterns_that_freeze_nothing_or_all_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.freeze = 'layer9'.*its parts are conv1, bn1, .*layer4.*`backbone`"):
        freeze(create("resnet18", 3), ["conv1", "layer9"])
    with pytest.raises(UserError, match=r"model\.freeze = .*nothing is left to learn"):
        freeze(small(), ["*"])
