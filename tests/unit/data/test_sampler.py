"""Which samples make which step."""

import numpy as np
import pytest

from trainyard.data import sampler


def test_each_epoch_is_a_permutation_and_the_tail_is_kept() -> None:
    order = sampler.Order(samples=23, batch=8, seed=5)
    assert order.steps_per_epoch == 3
    for epoch in range(3):
        steps = range(3 * epoch, 3 * epoch + 3)
        assert sorted(np.concatenate([order.global_batch(step) for step in steps])) == list(range(23))
        for step in steps:
            for world in (1, 2, 3, 4):
                parts = [order.slice(step, rank, world) for rank in range(world)]
                assert np.array_equal(np.concatenate(parts), order.global_batch(step))
    assert len(order.global_batch(2)) == 7
    assert [order.samples_before(step) for step in (0, 1, 3, 5)] == [0, 8, 23, 39]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 9])
def test_validation_batches_are_the_same_cuts_for_any_world(world: int) -> None:
    cuts = [tuple(cut) for rank in range(world) for cut in sampler.validation_batches(103, 10, rank, world)]
    assert sorted(cuts) == [tuple(range(start, min(start + 10, 103))) for start in range(0, 103, 10)]


def test_also_a_short_run_has_fifty_lines_of_metrics_or_one_of_each_step() -> None:
    for steps in (1, 7, 42, 50, 99, 100, 149, 499, 500, 50_000):
        every = sampler.Length(steps, 10).steps_per_line(None)
        assert 1 <= every <= 10
        assert steps // every >= min(steps, 50)
    assert sampler.Length(50_000, 10).steps_per_line(None) == 10
    assert sampler.Length(42, 10).steps_per_line(6) == 6, "what is asked for holds"
