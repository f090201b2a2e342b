"""Mixup, CutMix and the losses against torchvision's, timm's and PyTorch's; the same on any number of processes."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from trainyard.config.run_plan import count_forwards
from trainyard.config.sections.data import AugmentSettings
from trainyard.config.sections.learning import LossSettings
from trainyard.data.sampler import Order
from trainyard.training import mixup
from trainyard.training.loss import loss_sum

BOTH = AugmentSettings(mixup=0.2, cutmix=1.0)
CLASSES = 5


def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    pictures = torch.randn(count, 3, 12, 10, dtype=torch.float64, generator=generator)
    return pictures, torch.randint(0, CLASSES, (count,), generator=generator)


def step_with(patch: bool, augment: AugmentSettings = BOTH) -> int:
    """A step whose draw is CutMix with a box in the picture, or mixup."""
    for step in range(100):
        box = mixup.draw(augment, 7, step, 12, 10).box
        if (box is not None) == patch and (box is None or (box[2] - box[0]) * (box[3] - box[1]) > 20):
            return step
    raise AssertionError


@pytest.mark.parametrize("patch", [False, True])
def test_a_pair_is_mixed_as_by_torchvision(patch: bool) -> None:
    from torchvision.transforms import v2  # imported late: it brings torch's compiler

    pictures, labels = samples(6)
    step = step_with(patch)
    mixed, targets = mixup.mix(pictures, labels, CLASSES, BOTH, 7, step)
    what = mixup.draw(BOTH, 7, step, 12, 10)
    theirs = v2.CutMix(num_classes=CLASSES) if patch else v2.MixUp(num_classes=CLASSES)
    for pair in (slice(0, 2), slice(2, 4), slice(4, 6)):  # in a batch of two, the one before is the other
        pair_labels = labels[pair]
        params = {"labels": pair_labels, "batch_size": 2, "lam": what.own, "lam_adjusted": what.own, "box": what.box}
        torch.testing.assert_close(mixed[pair], theirs.transform(pictures[pair], params), rtol=1e-14, atol=1e-14)
        expected = theirs.transform(pair_labels, params)
        torch.testing.assert_close(targets[pair], expected.double(), rtol=1e-7, atol=1e-7)
    assert not torch.equal(mixed, pictures)


def test_boxes_are_torchvisions() -> None:
    height, width = 14, 9
    for own in (0.0, 0.3, 0.77, 1.0):
        for x in range(width):
            for y in range(height):
                half = 0.5 * math.sqrt(1.0 - own)
                w, h, point = int(half * width), int(half * height), torch.tensor([x, y])
                low = torch.clamp(point - torch.tensor([w, h]), min=0)
                high = torch.minimum(point + torch.tensor([w, h]), torch.tensor([width, height]))
                assert mixup.box_around(x, y, own, height, width) == (*low.tolist(), *high.tolist())


def test_share_kept_is_that_of_the_pixels_kept() -> None:
    pictures, labels = torch.zeros(2, 3, 12, 10), torch.tensor([0, 1])
    pictures[1] = 1.0
    mixed, targets = mixup.mix(pictures, labels, 2, BOTH, 7, step_with(True))
    assert float(mixed[0, 0].mean()) == pytest.approx(float(targets[0, 1]))
    assert float(1 - mixed[1, 0].mean()) == pytest.approx(float(targets[1, 0]))
    torch.testing.assert_close(targets.sum(1), torch.ones(2))


def test_draws_are_those_of_the_distributions() -> None:
    draws = [mixup.draw(BOTH, 3, step, 64, 64) for step in range(2000)]
    assert draws == [mixup.draw(BOTH, 3, step, 64, 64) for step in range(2000)]
    assert len({draw.own for draw in draws}) > 1400
    mixups = np.array([draw.own for draw in draws if draw.box is None])
    assert len(mixups) / 2000 == pytest.approx(0.5, abs=0.04)
    # Beta(0.2, 0.2): mean 1/2, variance 1 / (4 * 1.4)
    assert mixups.mean() == pytest.approx(0.5, abs=0.04)
    assert mixups.var() == pytest.approx(1 / 5.6, abs=0.015)
    assert all(
        draw.box is None for draw in (mixup.draw(AugmentSettings(mixup=1.0), 3, step, 8, 8) for step in range(50))
    )
    assert all(draw.box for draw in (mixup.draw(AugmentSettings(cutmix=1.0), 3, step, 8, 8) for step in range(50)))
    assert (mixup.mixes(BOTH), mixup.mixes(AugmentSettings(mixup=1.0)), mixup.mixes(AugmentSettings())) == (
        True,
        True,
        False,
    )


@pytest.mark.parametrize("count", [16, 13, 2, 1])
@pytest.mark.parametrize("patch", [False, True])
def test_any_number_of_processes_and_forwards_mixes_the_same(count: int, patch: bool) -> None:
    """Also a ragged batch, on which some have no samples; an odd last sample stays as it is."""
    pictures, labels = samples(count)
    order, step = Order(samples=count, batch=count, seed=1, unit=2), step_with(patch)
    whole = mixup.mix(pictures, labels, CLASSES, BOTH, 7, step)
    if count % 2:
        assert torch.equal(whole[0][-1], pictures[-1])
        assert whole[1][-1, labels[-1]] == 1
    places = {int(sample): place for place, sample in enumerate(order.global_batch(0))}
    for world in (1, 2, 3, 4, 7):
        for micro in (2, 3, 4, 16):
            forwards = count_forwards(count, world, micro, 2)
            seen = []
            for rank in range(world):
                mine = torch.tensor([places[int(sample)] for sample in order.slice(0, rank, world)], dtype=torch.int64)
                cuts = order.parts(len(mine), forwards)
                assert len(cuts) == forwards
                for cut in cuts:
                    part = mine[cut]
                    assert len(part) <= micro
                    seen.append((part, *mixup.mix(pictures[part], labels[part], CLASSES, BOTH, 7, step)))
            assert torch.equal(torch.cat([part for part, _, _ in seen]), torch.arange(count))
            assert torch.equal(torch.cat([mixed for _, mixed, _ in seen]), whole[0])
            assert torch.equal(torch.cat([targets for _, _, targets in seen]), whole[1])


def test_layout_in_memory_is_kept() -> None:
    pictures, labels = samples(4)
    for patch in (False, True):
        mixed, _ = mixup.mix(pictures.to(memory_format=torch.channels_last), labels, CLASSES, BOTH, 7, step_with(patch))
        assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_cross_entropy_with_smoothing_by_hand() -> None:
    outputs, labels = torch.randn(6, CLASSES, dtype=torch.float64), torch.arange(6) % CLASSES
    smooth = torch.full((6, CLASSES), 0.1 / CLASSES, dtype=torch.float64)
    smooth[torch.arange(6), labels] += 0.9
    logs = outputs - outputs.exp().sum(1, keepdim=True).log()
    by_hand = -(smooth * logs).sum()
    settings = LossSettings(label_smoothing=0.1)
    torch.testing.assert_close(loss_sum(outputs, labels, settings), by_hand)
    probabilities = mixup.one_hot(labels, CLASSES, torch.float64)
    torch.testing.assert_close(loss_sum(outputs, probabilities, settings), by_hand)
    parts = loss_sum(outputs[:2], labels[:2], settings) + loss_sum(outputs[2:], labels[2:], settings)
    torch.testing.assert_close(parts, by_hand)
    assert float(loss_sum(outputs[:0], labels[:0], settings)) == 0.0
    assert loss_sum(outputs.bfloat16(), labels, settings).dtype == torch.float32


@pytest.mark.parametrize(("threshold", "smoothing"), [(0.0, 0.0), (0.2, 0.0), (0.0, 0.1)])
def test_binary_cross_entropy_is_timms(threshold: float, smoothing: float) -> None:
    from timm.loss import BinaryCrossEntropy

    theirs = BinaryCrossEntropy(smoothing=smoothing, target_threshold=threshold or None)
    ours = LossSettings(name="bce", bce_threshold=threshold, label_smoothing=smoothing)
    outputs, labels = torch.randn(8, CLASSES), torch.arange(8) % CLASSES
    torch.testing.assert_close(loss_sum(outputs, labels, ours), theirs(outputs, labels) * 8)
    if not smoothing:  # timm smooths mixed targets elsewhere
        soft = torch.lerp(
            mixup.one_hot(labels, CLASSES, torch.float32), mixup.one_hot(labels.flip(0), CLASSES, torch.float32), 0.3
        )
        torch.testing.assert_close(loss_sum(outputs, soft, ours), theirs(outputs, soft) * 8)
        by_hand = functional.softplus(outputs) - outputs * ((soft > 0.2).float() if threshold else soft)
        torch.testing.assert_close(loss_sum(outputs, soft, ours), by_hand.sum() / CLASSES)
