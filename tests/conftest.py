"""The order of the tests: files that take long come first, so that the workers of a parallel run end together."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # tests import each other's helpers as tests.FOLDER.MODULE
CLUSTER = (HERE / "e2e", HERE / "images")  # where scripts/test looks for what needs the cluster or the images


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by the seconds of their mark `takes`; what has none keeps its place behind them."""
    seconds: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("takes")
        seconds[item.path] = max(seconds.get(item.path, 0), mark.args[0] if mark else 0)
        if item.path.parent not in CLUSTER and any(item.get_closest_marker(name) for name in ("e2e", "images")):
            raise pytest.UsageError(f"{item.nodeid} is marked e2e or images: move it to tests/e2e or tests/images")
    items.sort(key=lambda item: -seconds[item.path])
