"""Imports without garbage collection."""

import gc

import pytest

from trainyard.core import garbage


@pytest.mark.parametrize("was_on", [True, False])
def test_nothing_is_collected_while_it_is_paused_nor_what_was_made_then_looked_at_later(was_on: bool) -> None:
    before, frozen = gc.isenabled(), gc.get_freeze_count()
    (gc.enable if was_on else gc.disable)()
    try:
        with garbage.paused():
            collections = [one["collections"] for one in gc.get_stats()]
            made: list[list[int]] = [[] for _ in range(100_000)]  # enough for each generation's collection
            assert [one["collections"] for one in gc.get_stats()] == collections
        assert gc.isenabled() == was_on
        assert gc.get_freeze_count() >= frozen + len(made)
    finally:
        gc.unfreeze()
        (gc.enable if before else gc.disable)()
