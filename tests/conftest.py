"""The order of the tests: files that take long come first, so that the workers of a parallel run end together."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by the seconds of their mark `takes`; what has none keeps its place behind them."""
    seconds: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("takes")
        seconds[item.path] = max(seconds.get(item.path, 0), mark.args[0] if mark else 0)
    items.sort(key=lambda item: -seconds[item.path])
