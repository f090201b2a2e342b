"""What a run takes before it starts, by the numbers of the run itself."""

import pytest

from trainyard import config
from trainyard.config import estimate
from trainyard.config.settings import Config
from trainyard.data.sampler import Length, Order


def settings(**over: object) -> Config:
    return config.build({"recipe": "demo"}, over)


@pytest.mark.parametrize(
    ("train", "batch", "length"),
    [(103, 8, {"epochs": 3}), (104, 8, {"epochs": 1}), (103, 8, {"max_steps": 20}), (103, 200, {"epochs": 2})],
)
def test_work_is_what_the_order_of_samples_gives(train: int, batch: int, length: dict[str, int]) -> None:
    run = settings(**length)
    order = Order(train, batch, seed=1)
    whole = Length(run.max_steps or (run.epochs or 0) * order.steps_per_epoch, order.steps_per_epoch)
    work = estimate.work_of(run, train, 50, batch)
    assert (work.steps, work.trained) == (whole.steps, order.samples_before(whole.steps))
    assert (work.validations, work.validated) == (whole.epochs, whole.epochs * 50)


@pytest.mark.parametrize(("every", "count"), [(1, 10), (2, 5), (3, 4), (10, 1), (20, 1), (0, 1)])
def test_validations_are_counted_with_the_last_one(every: int, count: int) -> None:
    run = settings(epochs=10, validate={"every_epochs": every})
    assert estimate.work_of(run, 100, 10, 10).validations == count


def test_expected_hours_are_images_over_rate() -> None:
    work = estimate.CostWork(steps=1, trained=7_200_000, validations=1, validated=3_600_000)
    found = estimate.expect(work, gpus=4, rate=500, validates=2, rest=100)
    assert (found.training, found.validation, found.rest) == (3600, 900, 100)
    assert found.gpu_hours == pytest.approx(4 * 4600 / 3600)


def test_published_rates_name_their_sources() -> None:
    for name, rate in estimate.PUBLISHED.items():
        assert rate.images > 0, name
        assert any(word in rate.source for word in ("NVIDIA", "MLPerf", "timm")), name
