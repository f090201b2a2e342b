"""Charts, part by part."""

from trainyard.report.svg import ticks


def test_ticks_cover_the_range() -> None:
    for low, high in [(0.0, 1.0), (3.2, 3.9), (0.0, 12345.0), (-1.0, 1.0), (2.0, 2.0)]:
        values = ticks(low, high, 5)
        assert values[0] <= low
        assert values[-1] >= high
        assert 2 <= len(values) <= 8
