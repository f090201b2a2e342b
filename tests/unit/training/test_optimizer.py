"""Optimizers, gradient clipping and parameter groups; LAMB against a literal transcription of its paper, and timm's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from fleet import Fleet, under_torchrun
from reading import NoReads
from torch import nn

from trainyard.config.sections.learning import OptimizerSettings
from trainyard.parallel.base import clip
from trainyard.training import optimizer as optimizers
from trainyard.training.lamb import Lamb

SHAPES = ((4, 3), (6,), (2, 2, 3, 3))


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in SHAPES]


def lamb_of_the_paper(
    x: np.ndarray, grads: list[np.ndarray], *, rate: float, decay: float, beta1: float, beta2: float, eps: float
) -> np.ndarray:
    """Algorithm 2 of arXiv:1904.00962 for one layer, with phi(z) = z."""
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, g in enumerate(grads, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        r = m_hat / (np.sqrt(v_hat) + eps)
        u = r + decay * x
        x = x - rate * np.linalg.norm(x) / np.linalg.norm(u) * u
    return x


def test_lamb_is_the_papers_algorithm() -> None:
    weights = [nn.Parameter(value) for value in tensors(0)]
    grads = [tensors(step) for step in range(1, 11)]
    expected = [
        lamb_of_the_paper(weight.detach().numpy().copy(), [step[index].numpy() for step in grads],
                          rate=0.02, decay=0.1, beta1=0.8, beta2=0.95, eps=1e-6)
        for index, weight in enumerate(weights)
    ]  # fmt: skip
    optimizer = Lamb(weights, lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    for step in grads:
        for weight, grad in zip(weights, step, strict=True):
            weight.grad = grad.clone()
        optimizer.step()
    for weight, values in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight.detach().numpy(), values, rtol=1e-12)


def test_lamb_is_timms_with_and_without_decay_and_from_zero() -> None:
    """timm's clips inside at 1; ours before, to the same."""
    from timm.optim.lamb import Lamb as Theirs

    pairs = []
    for kind, inside in ((Theirs, 1.0), (Lamb, None)):
        weights = [nn.Parameter(value) for value in tensors(0)]
        weights.append(nn.Parameter(torch.zeros(5, 2, dtype=torch.float64)))
        groups = [
            {"params": [weights[0], weights[3]], "weight_decay": 0.05},
            {"params": weights[1:3], "weight_decay": 0.0},
        ]
        optimizer = kind(groups, lr=0.01, eps=1e-6, **({"max_grad_norm": inside} if inside else {}))
        for step in range(1, 9):
            for weight, grad in zip(weights, [*tensors(step), tensors(step)[0][:2].new_ones(5, 2) * step], strict=True):
                weight.grad = grad.clone()
            if not inside:
                clip(optimizer, 1.0)
            optimizer.step()
        pairs.append(weights)
    for theirs, ours in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)  # torch adds 1e-6 to the norm it clips by
        assert not torch.equal(ours, torch.zeros_like(ours))


@pytest.mark.parametrize("name", ["sgd", "lamb", "adamw"])
def test_an_optimizer_continues_bit_by_bit_from_its_state(name: str) -> None:
    """As a run resumes: new groups, saved state."""
    settings = OptimizerSettings(name=name, lr=0.01, weight_decay=0.01)  # type: ignore[arg-type]

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for step in range(first, last):
            torch.manual_seed(step)
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
        return model, optimizers.build(model, settings)

    straight, optimizer = made()
    steps(straight, optimizer, 0, 7)
    broken, before = made()
    steps(broken, before, 0, 4)
    resumed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    resumed.load_state_dict(broken.state_dict())
    after = optimizers.build(resumed, settings)
    after.load_state_dict({"state": before.state_dict()["state"], "param_groups": after.state_dict()["param_groups"]})
    steps(resumed, after, 4, 7)
    for key, value in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value)
        assert torch.isfinite(value).all()


@pytest.mark.parametrize("bad", [0, 2], ids=["the first step", "a later step"])
@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "sharded", "lamb", "adamw"])
def test_a_step_whose_gradients_overflow_is_left_out_without_being_read(
    monkeypatch: pytest.MonkeyPatch, kind: str, clipped: bool, bad: int
) -> None:
    """As fp16's scaler asks for it; memory that was never written to holds NaN here, as it may anywhere."""
    torch.use_deterministic_algorithms(True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    settings = OptimizerSettings(name="sgd" if kind == "sharded" else kind, lr=0.05, weight_decay=0.1)  # type: ignore[arg-type]

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 1))
        if kind == "sharded":
            groups = optimizers.parameter_groups(model, settings)
            return model, optimizers.ShardedSgd(groups, settings.lr, settings.momentum)
        optimizer = optimizers.build(model, settings)
        optimizers.begin_momentum(optimizer)
        return model, optimizer

    def backward(model: nn.Module, step: int, factor: torch.Tensor | float) -> None:
        torch.manual_seed(step)
        loss = model(torch.randn(6, 4)).square().mean()
        (loss * factor).backward()

    try:
        (scaled, optimizer), (plain, reference) = made(), made()
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(5):
            backward(scaled, step, scaler.get_scale())
            if step == bad:
                next(scaled.parameters()).grad[0, 0] = float("inf")  # type: ignore[index]
            scaler.scale(torch.zeros(()))  # the scaler makes its tensors
            with NoReads():
                if clipped:
                    scaler.unscale_(optimizer)
                    clip(optimizer, 0.5)
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            if step != bad:
                backward(plain, step, 1.0)
                if clipped:
                    clip(reference, 0.5)
                reference.step()
                reference.zero_grad()
    finally:
        torch.use_deterministic_algorithms(False)
    assert scaler.get_scale() == 128.0
    for found, expected in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    counts = [state["step"] for state in optimizer.state.values() if "step" in state]
    assert all(float(count) == 4 for count in counts)


def test_optimizers_get_their_settings() -> None:
    net = nn.Linear(3, 2)
    adamw = optimizers.build(net, OptimizerSettings(name="adamw", lr=0.5, betas=[0.8, 0.9], eps=1e-3, weight_decay=0.2))
    assert isinstance(adamw, torch.optim.AdamW)
    assert [(group["betas"], group["eps"], group["weight_decay"]) for group in adamw.param_groups] == [
        ((0.8, 0.9), 1e-3, 0.2), ((0.8, 0.9), 1e-3, 0.0)
    ]  # fmt: skip
    lamb = optimizers.build(net, OptimizerSettings(name="lamb", lr=0.5, betas=[0.8, 0.9], eps=1e-3, weight_decay=0.2))
    assert isinstance(lamb, Lamb)
    assert [(group["betas"], group["eps"], group["weight_decay"]) for group in lamb.param_groups] == [
        ((0.8, 0.9), 1e-3, 0.2), ((0.8, 0.9), 1e-3, 0.0)
    ]  # fmt: skip


def test_gradients_are_clipped_by_their_norm_over_all_parameters() -> None:
    net = nn.Linear(1, 1)
    optimizer = optimizers.build(net, OptimizerSettings())
    for norm, factor in ((10.0, 1.0), (2.5, 0.5)):
        net.weight.grad, net.bias.grad = torch.tensor([[3.0]]), torch.tensor([4.0])  # a norm of 5
        clip(optimizer, norm)
        assert (float(net.weight.grad), float(net.bias.grad)) == pytest.approx((3 * factor, 4 * factor), rel=1e-6)


def test_shared_parameters_and_foreign_norms_are_grouped_once() -> None:
    class TheirNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    net = nn.Sequential(nn.Linear(3, 3), TheirNorm(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    decayed, plain = optimizers.split(net, OptimizerSettings(no_decay=["norm"]))
    assert ([tuple(p.shape) for p in decayed], [tuple(p.shape) for p in plain]) == ([(3, 3), (3,), (3,)], [(3,)])


def test_shards_on_two_processes_do_as_whole_tensors(fleet: Fleet, tmp_path: Path) -> None:
    """Every optimizer, clipping and the moving average under FSDP's fully_shard."""
    codes, output = fleet.wait(fleet.ranks("sharded", [], under_torchrun(2), tmp_path))
    assert codes == [0, 0], output
