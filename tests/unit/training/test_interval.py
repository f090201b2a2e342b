"""Checkpoints whose interval follows from what they cost the run, and from how often it is interrupted."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Trainer, events, hold, ranks_of
from published import assert_same_weights

from tests import patience
from trainyard.training.interval import GPU_SECONDS, LEAST, MOST, interval, time_to_failure

pytestmark = pytest.mark.takes(20)

DAY = 86_400.0


def test_the_published_rate_is_where_a_run_begins_and_its_own_counts_in_time() -> None:
    assert time_to_failure(1024, 0.0, 0) == 7.9 * 3600
    assert time_to_failure(16_384, 0.0, 0) == GPU_SECONDS / 16_384
    assert time_to_failure(1024, 10 * DAY, 0) > time_to_failure(1024, 0.0, 0)
    # a spot fleet that is interrupted each hour is known for that after three hours
    assert time_to_failure(64, 7200.0, 2) == pytest.approx((GPU_SECONDS / 64 + 7200) / 3)
    assert time_to_failure(64, 10_800.0, 3) == time_to_failure(64, DAY, 24) == 3600.0
    # thousands of GPUs that fail less often than is published
    assert time_to_failure(16_384, 10 * DAY, 3) == pytest.approx((GPU_SECONDS / 16_384 + 10 * DAY) / 4)


@pytest.mark.parametrize(
    ("stalls", "start", "failure", "written", "expected"),
    [
        ([], 30.0, 1e6, 1.0, LEAST),  # not measured yet
        ([0.5], 0.0, 10_000.0, 1.0, 100.0),  # sqrt(2 x 0.5 x 10,000)
        ([0.5], 4_400.0, 10_000.0, 1.0, 120.0),
        ([9.0, 0.5, 0.5], 0.0, 10_000.0, 1.0, 100.0),  # the first one also allocates
        ([0.001], 0.0, 10_000.0, 1.0, LEAST),
        ([5.0], 0.0, 1e6, 1.0, MOST),
        ([0.001], 0.0, 10_000.0, 40.0, 80.0),  # slow storage
    ],
)
def test_the_interval(stalls: list[float], start: float, failure: float, written: float, expected: float) -> None:
    assert interval(stalls, start, failure, written) == pytest.approx(expected)


def test_a_run_that_saves_when_it_is_worth_it_resumes_to_the_same_bits(trainer: Trainer, tmp_path: Path) -> None:
    """Which steps are saved differs by the machine's pace, and all ranks agree on them: the weights are the same."""
    run, over = tmp_path / "run", {"checkpoint.every_steps": 0, "epochs": 4}
    calm = trainer.train(tmp_path / "calm", 2, **over)
    auto: dict[str, Any] = {**over, "checkpoint.every_seconds": "auto"}
    # 32 steps; LEAST seconds are half of them. It never ends by itself
    process = trainer.start(run, 2, {"STEP_SECONDS": "1", **hold(tmp_path / "places", "30")}, **auto)
    patience.wait("no checkpoint", lambda: events(run, "checkpoint"), lambda: patience.processor_seconds(process.pid))
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    patience.communicate(process)
    assert process.returncode == 137
    trainer.train(run, 2, **auto)
    assert 0 < events(run, "resume")[0]["step"] < 32
    assert_same_weights(run, calm)
