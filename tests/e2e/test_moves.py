"""One run on three operators: each `helm upgrade` moves it in the middle, and no step is made twice."""

from pathlib import Path

import pytest

from tests.e2e import moves
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import FIRST

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(4), pytest.mark.takes(120)]
shows_moved = pytest.mark.shows("takes over a run", "training-operator", "mpi-operator", "Kubeflow Trainer", "JobSet")
WAY = ("pytorchjob", "trainjob", "mpijob", "trainjob")


@pytest.fixture(scope="module")
def run(namespace, image, install, tmp_path_factory, request) -> tuple[moves.Moves, Path]:
    """The run's way, and its directory."""
    for needed in ("archive", "trainer_v2"):
        request.getfixturevalue(needed)
    seen, folder = moves.Moves(namespace, Gate(namespace, image, FIRST)), tmp_path_factory.mktemp("moves")
    for operator in WAY:
        moves.move(seen, install, operator)
    moves.finish(seen, folder)
    return seen, folder


@shows_moved
def test_each_upgrade_moves_the_run_and_no_step_is_lost(run):
    seen, folder = run
    assert seen.kinds == [f"{job}s" for job in WAY]
    moves.lost_nothing(folder, len(WAY) - 1)


@shows_moved
def test_the_weights_are_those_of_a_run_that_stayed(run, calm):
    moves.same_weights(run[1], calm)
