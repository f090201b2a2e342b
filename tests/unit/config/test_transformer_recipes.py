"""The recipes of fine-tuning, and of a vision transformer from scratch: each against its source's formulas."""

import math
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from torch import nn

from trainyard import config
from trainyard.config import Config
from trainyard.core.exits import UserError
from trainyard.data.sampler import Length
from trainyard.models import factory, plain_vit
from trainyard.training import optimizer as optimizers

IMAGENET, PETS = 1_281_167, 3_680


@cache
def recipe(name: str) -> Config:
    return config.build({"recipe": name}, {"data": {"dir": "/data/pets"}})


def rate(settings: Config, batch: float, length: Length, step: int) -> float:
    return optimizers.learning_rate(settings.schedule, settings.optimizer, batch, length, step)


def rates(name: str, samples: int, *steps: int) -> list[float]:
    settings = recipe(name)
    batch = settings.batch.global_ or 0
    per_epoch = -(-samples // batch)
    length = Length(settings.max_steps or per_epoch * (settings.epochs or 0), per_epoch)
    return [rate(settings, batch, length, step % length.steps) for step in steps]


def test_the_plain_transformer_step_by_step() -> None:
    """1,252 steps an epoch, 10,000 of warmup, then a cosine over the other 365,600."""
    assert rates("vit-s16-300", IMAGENET, 0, 4_999, 9_999, 10_000) == pytest.approx([1e-7, 5e-4, 1e-3, 1e-3])
    half = 10_000 + 365_600 // 2
    assert rates("vit-s16-300", IMAGENET, half, -1) == pytest.approx(
        [5e-4, 1e-3 * 0.5 * (1 + math.cos(math.pi * 365_599 / 365_600))]
    )


def adam_of_big_vision(
    w: np.ndarray, grads: list[np.ndarray], rates_: list[float], peak: float, wd: float
) -> np.ndarray:
    """optax.py's chain: clip to 1, Adam, times the rate, plus wd * w, all times the schedule from 0 to 1."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (grad, rate) in enumerate(zip(grads, rates_, strict=True), 1):
        g = grad * min(1.0, 1.0 / np.linalg.norm(grad))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        adam = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        w = w - (rate / peak) * (peak * adam + wd * w)
    return w


def test_the_optimizer_of_the_plain_transformer_is_big_visions() -> None:
    """Its weight decay of 1e-4 stands beside the learning rate of 1e-3; AdamW's is multiplied by the rate."""
    from trainyard.parallel.base import clip

    settings = recipe("vit-s16-300")
    torch.manual_seed(0)
    net = nn.Linear(5, 4, bias=False).double()
    grads = [torch.randn(4, 5, dtype=torch.float64) for _ in range(6)]
    found = rates("vit-s16-300", IMAGENET, *range(9_998, 10_004))
    expected = adam_of_big_vision(net.weight.detach().numpy().copy(), [g.numpy() for g in grads], found, 1e-3, 1e-4)
    optimizer = optimizers.build(net, settings.optimizer)
    for grad, rate in zip(grads, found, strict=True):
        net.weight.grad = grad.clone()
        optimizers.set_learning_rate(optimizer, rate)
        clip(optimizer, settings.optimizer.clip_norm)
        optimizer.step()
    np.testing.assert_allclose(net.weight.detach().numpy(), expected, rtol=1e-6)


def embedding_of_big_vision(h: int, w: int, width: int) -> np.ndarray:
    """models/vit.py, posemb_sincos_2d, in its own words of numpy."""
    y, x = np.mgrid[:h, :w]
    omega = 1.0 / (10_000.0 ** (np.arange(width // 4) / (width // 4 - 1)))
    y, x = np.einsum("m,d->md", y.flatten(), omega), np.einsum("m,d->md", x.flatten(), omega)
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)


def test_the_plain_transformer_and_its_start() -> None:
    settings = recipe("vit-s16-300")
    net: Any = factory.build(settings.model, settings.data, settings.seed, 1000, dtype=torch.float32, total=None)
    learned = [parameter for parameter in net.parameters() if parameter.requires_grad]
    block = 4 * 384**2 + 4 * 384 + 2 * 384 * 1536 + 1536 + 384 + 4 * 384
    whole = 16 * 16 * 3 * 384 + 384 + 12 * block + 2 * 384 + 384**2 + 384 + 384 * 1000 + 1000
    assert sum(parameter.numel() for parameter in learned) == whole == 22_122_472
    np.testing.assert_allclose(net.pos_embed[0].numpy(), embedding_of_big_vision(14, 14, 384), atol=1e-6)
    groups = optimizers.build(net, settings.optimizer).param_groups
    assert [(group["weight_decay"], {p.ndim for p in group["params"]}) for group in groups] == [
        (0.1, {2, 4}),
        (0.0, {1}),
    ]
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in learned}
    state = net.state_dict()
    for name in ("head.2.weight", "head.2.bias", "head.0.bias", "blocks.3.attn.qkv.bias"):
        assert not state[name].any(), name
    std = {
        "blocks.5.attn.qkv.weight": math.sqrt(2 / 768), "blocks.5.attn.proj.weight": math.sqrt(2 / 768),
        "blocks.5.mlp.fc1.weight": math.sqrt(2 / 1920), "blocks.5.mlp.fc1.bias": 1e-6,
        "patch_embed.proj.weight": math.sqrt(1 / 768), "head.0.weight": math.sqrt(1 / 384),
    }  # fmt: skip
    for name, expected in std.items():
        assert float(state[name].std()) == pytest.approx(expected, rel=0.06), name
    assert not factory.build(settings.model, settings.data, settings.seed, 10, dtype=torch.float32, total=None)(
        torch.randn(2, 3, 224, 224)
    ).any()  # the head starts at 0


def test_the_mean_over_all_tokens_after_the_norm_feeds_the_head() -> None:
    torch.manual_seed(0)
    net: Any = plain_vit.vit_s16(7, 32)
    nn.init.normal_(net.head[2].weight)
    pictures = torch.randn(2, 3, 32, 32)
    tokens = net.patch_embed(pictures) + net.pos_embed
    for block in net.blocks:
        tokens = block(tokens)
    expected = net.head[2](torch.tanh(net.head[0](net.norm(tokens).mean(dim=1))))
    torch.testing.assert_close(net(pictures), expected)
    with pytest.raises(UserError, match=r"data\.image_size = 40: .*a multiple of 16"):
        plain_vit.vit_s16(7, 40)


def test_fine_tuning_a_resnet_step_by_step() -> None:
    half = 0.01 * 0.5
    assert rates("finetune", PETS, 0, 10_000, -1) == pytest.approx(
        [0.01, half, 0.01 * 0.5 * (1 + math.cos(math.pi * 19_999 / 20_000))]
    )
    settings = recipe("finetune")
    net = factory.create(settings.model.name, 37)
    [only] = optimizers.build(net, settings.optimizer).param_groups
    assert (len(only["params"]), only["weight_decay"], only["nesterov"], only["momentum"]) == (161, 1e-4, True, 0.9)


def test_fine_tuning_a_transformer_is_the_trainers_linear_schedule() -> None:
    """Hugging Face's: rate * step / warmup, then rate * (steps - step) / (steps - warmup); ours begins a step later."""
    per_epoch = -(-PETS // 128)
    steps = 5 * per_epoch
    assert steps == 145  # as in the source's table
    warmup = math.ceil(0.1 * steps)
    found = rates("finetune-vit", PETS, *range(steps))
    ours = round(0.5 * per_epoch)
    assert abs(ours - warmup) <= 1
    assert found[:ours] == pytest.approx([5e-5 * (step + 1) / ours for step in range(ours)])
    assert found[ours:] == pytest.approx([5e-5 * (steps - step) / (steps - ours) for step in range(ours, steps)])
    settings = recipe("finetune-vit").optimizer
    assert (settings.name, settings.betas, settings.eps, settings.weight_decay, settings.clip_norm) == (
        "adamw", [0.9, 0.999], 1e-8, 0.0, 1.0
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "published"), [("finetune", "92.1"), ("finetune-vit", "94.09"), ("vit-s16-300", "80.0")]
)
def test_a_recipe_says_where_it_comes_from_and_that_it_was_not_rerun(name: str, published: str) -> None:
    header = (ROOT / "src/trainyard" / "recipes" / f"{name}.yaml").read_text().split("\nmodel:")[0].replace("\n# ", " ")
    assert f"Published: {published} %" in header
    for part in ("Source: ", "Published time: ", "Not rerun here", "arXiv:" if name != "finetune-vit" else "https://"):
        assert part in header
    row = next(line for line in (ROOT / "docs" / "recipes.md").read_text().splitlines() if f"| `{name}`" in line)
    assert re.search(rf"\| {re.escape(published)}\b", row)
