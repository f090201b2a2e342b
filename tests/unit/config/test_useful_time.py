"""The expected share of useful time: its published points, its limits, and a simulation of single failures."""

import random
import re
from pathlib import Path

import pytest

from trainyard.config.useful_time import GPU_SECONDS, time_between_failures, useful_share
from trainyard.training.interval import interval

HOUR = 3600.0
PAGE = Path(__file__).resolve().parents[3] / "docs/interruptions.md"


def test_the_time_between_failures_is_the_published_one_where_there_is_one() -> None:
    assert time_between_failures(1024) == 7.9 * HOUR
    assert time_between_failures(16_384) == pytest.approx(1.8 * HOUR)
    assert time_between_failures(128) == GPU_SECONDS / 128
    assert time_between_failures(32_768) == pytest.approx(0.9 * HOUR)
    sizes = [1, 1023, 1024, 1025, 4096, 16_383, 16_384, 16_385, 100_000]
    found = [time_between_failures(size) for size in sizes]
    assert found == sorted(found, reverse=True)


def test_nothing_is_lost_without_stalls_and_failures() -> None:
    assert useful_share(1e12, 15.0, 0.0, 60.0) == pytest.approx(1.0)
    assert useful_share(1e12, 15.0, 15.0, 60.0) == pytest.approx(0.5)  # each checkpoint stalls as long as it is worth


def test_each_cost_is_counted_once() -> None:
    assert useful_share(1000.0, 100.0, 0.0, 0.0) == pytest.approx(0.95)  # half an interval of each failure
    assert useful_share(1000.0, 100.0, 0.0, 900.0) == pytest.approx(0.5)
    assert useful_share(10.0, 100.0, 0.0, 0.0) == 0.0  # no checkpoint is ever reached


def simulated(failure: float, interval: float, stall: float, away: float) -> float:
    """Return the share of kept steps of a run that fails at exponentially distributed times."""
    draw = random.Random(1)
    kept = time = 0.0
    for _ in range(40_000):
        lived = draw.expovariate(1 / failure)
        kept += lived // (interval + stall) * interval  # what was saved until then
        time += lived + away
    return kept / time


@pytest.mark.parametrize(
    ("failure", "interval", "stall", "away"),
    [(7.9 * HOUR, 169.0, 0.5, 60.0), (1.8 * HOUR, 80.0, 0.5, 350.0), (600.0, 15.0, 0.1, 40.0)],
)
def test_it_is_what_a_simulation_of_single_failures_gives(
    failure: float, interval: float, stall: float, away: float
) -> None:
    expected = useful_share(failure, interval, stall, away)
    assert simulated(failure, interval, stall, away) == pytest.approx(expected, abs=2e-3)


def test_the_documents_table_is_by_the_formula() -> None:
    table = re.search(r"(\| GPUs \| time between.*?)\n\n", PAGE.read_text(), re.DOTALL)
    assert table
    head, *rows = table[1].splitlines()
    away = [float(found) for found in re.findall(r"(\d+) s", head)]
    assert away == [10, 60, 120, 350]
    for line in rows[1:]:
        gpus, *figures = line.strip("| ").split(" | ")
        failure = time_between_failures(int(gpus.replace(",", "")))
        every = interval([0.0047], 0.0, failure, 0.0)
        shares = [f"{100 * useful_share(failure, every, 0.0047, seconds):.2f} %" for seconds in away]
        assert figures == [f"{failure / HOUR:.1f} h", f"{every:.0f} s", *shares]
