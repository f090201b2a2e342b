"""A plugin of pytest: a test that would begin after QUICK_UNTIL (seconds since 1970) is skipped, and said to be."""

import os
import time

import pytest

from tests.costs import LATE


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip before anything is set up."""
    if time.time() > float(os.environ["QUICK_UNTIL"]):
        pytest.skip(LATE)
