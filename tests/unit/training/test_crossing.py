"""A run resumes from another strategy's checkpoint, on another number of processes; anyone can load its weights."""

from pathlib import Path

import pytest
import torch
from conftest import events
from fleet import Fleet
from published import weights

from trainyard.run import checkpoint

pytestmark = pytest.mark.takes(15)

# What a run meets beside DDP, FSDP and a run on one process
each_other = pytest.mark.parametrize("other", ["ddp", pytest.param("horovod", marks=pytest.mark.root)])
# The length must not show in the learning rate: each leg of the journey is a longer run than the one before.
SAME = {
    "epochs": None, "schedule.name": "constant", "schedule.warmup_epochs": 0, "validate.every_epochs": 0,
    "checkpoint.every_steps": 0, "augment.mixup": 0.2, "ema.decay": 0.9,
}  # fmt: skip


def go_on(fleet: Fleet, run: Path, kind: str, world: int, steps: int, **over: object) -> None:
    module = "trainers.hvd" if kind == "horovod" else "trainers.ddp"
    fleet.train(run, world, module, strategy=kind, max_steps=steps, **{**SAME, **over})


def losses(run: Path) -> list[float]:
    found = events(run, "train")
    assert [event["step"] for event in found] == list(range(1, len(found) + 1))
    return [event["loss"] for event in found]


@each_other
def test_a_run_resumes_with_any_strategy_and_back(fleet: Fleet, tmp_path: Path, other: str) -> None:
    """Also in another memory format: torch's fused SGD passes through weights and momentum in the order of memory."""
    undisturbed, travelling = tmp_path / "undisturbed", tmp_path / "travelling"
    legs = [
        (other, 2, False), ("ddp", 3, True), ("fsdp", 2, True), ("single", 1, False), ("fsdp", 3, True),
        (other, 2, True), (other, 2, False),
    ]  # fmt: skip
    go_on(fleet, undisturbed, "single", 1, 4 * len(legs))
    for leg, (kind, world, last) in enumerate(legs, 1):
        go_on(fleet, travelling, kind, world, 4 * leg, **{"model.channels_last": last})
    pairs = zip(losses(undisturbed), losses(travelling), strict=True)
    assert max(abs(a - b) for a, b in pairs) <= 1e-12
    a, b = weights(undisturbed), weights(travelling)
    assert all(torch.allclose(a[name], b[name], rtol=0, atol=1e-11) for name in a)


@pytest.mark.parametrize(
    ("legs", "optimizer"),
    [
        (
            [("fsdp", 2), ("ddp", 2), ("fsdp", 3)],
            {"optimizer.name": "adamw", "optimizer.lr": 0.01, "optimizer.momentum": 0.9},
        ),
        (
            [("single", 1), ("fsdp", 2)],
            {"optimizer.name": "lamb", "optimizer.lr": 0.1, "optimizer.clip_norm": 1.0},
        ),
    ],
    ids=["adamw", "lamb"],
)
def test_moments_travel_too(
    fleet: Fleet, tmp_path: Path, legs: list[tuple[str, int]], optimizer: dict[str, object]
) -> None:
    undisturbed, travelling = tmp_path / "undisturbed", tmp_path / "travelling"
    go_on(fleet, undisturbed, "single", 1, 4 * len(legs), **optimizer)
    for leg, (kind, world) in enumerate(legs, 1):
        go_on(fleet, travelling, kind, world, 4 * leg, **optimizer)
    assert losses(travelling) == pytest.approx(losses(undisturbed), rel=0, abs=1e-12)


def test_moments_keep_their_places_in_another_memory_format(fleet: Fleet, tmp_path: Path) -> None:
    """Also without a strategy that lays weights out anew."""
    undisturbed, travelling = tmp_path / "undisturbed", tmp_path / "travelling"
    go_on(fleet, undisturbed, "single", 1, 12)
    for leg, last in enumerate((False, True, False), 1):
        go_on(fleet, travelling, "single", 1, 4 * leg, **{"model.channels_last": last})
    assert losses(travelling) == pytest.approx(losses(undisturbed), rel=0, abs=1e-12)


@each_other
def test_plain_torchvision_loads_what_any_strategy_saves(fleet: Fleet, tmp_path: Path, other: str) -> None:
    import torchvision

    over = {
        "model.name": "torchvision:shufflenet_v2_x0_5", "data.dir": "synthetic", "data.synthetic_samples": 6,
        "batch.global": 4, "data.image_size": 32, "data.val_resize": 0, "precision": "fp32",
        "model.batch_norm": "local", "ema.decay": 0.0, "model.channels_last": True,
    }  # fmt: skip
    run = tmp_path / "run"
    for steps, (kind, world) in enumerate([(other, 1), ("fsdp", 2)], 1):
        go_on(fleet, run, kind, world, steps, **over)
        torchvision.models.shufflenet_v2_x0_5().load_state_dict(newest(run))
    published = weights(run)
    torchvision.models.shufflenet_v2_x0_5().load_state_dict(published)
    assert all(torch.equal(value, published[name]) for name, value in newest(run).items())


def newest(run: Path) -> dict[str, torch.Tensor]:
    """The weights in the newest checkpoint."""
    found: dict[str, torch.Tensor] = checkpoint.at(checkpoint.steps(run / "checkpoints")[-1]).load()["model"]
    return found
