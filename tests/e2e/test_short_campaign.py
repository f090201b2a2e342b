"""A run on three nodes goes on by itself after a fault of each sort, with the weights of an undisturbed run."""

import json
from pathlib import Path

import pytest

from hack.campaign.faults import KINDS, short
from tests import patience

# Soak: by what its parts have taken, six minutes on idle cores: two until the run trains on three nodes, 200 s for the
# faults, and a minute for its end and the undisturbed run. `make test` has four.
pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.nodes, pytest.mark.soak, pytest.mark.takes(360)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> None:
    """Leave the other tests' cluster alone: this file has its own."""


def test_a_run_goes_on_by_itself_after_a_fault_of_each_sort() -> None:
    done = patience.run([str(ROOT / "hack/campaign/on-nodes"), "short"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bit-equal" in done.stdout
    rows = json.loads((ROOT / "build/campaign/pytorchjob-short/rows.json").read_text())
    # what the cloud does where a machine is gone
    assert [(fault[0], person) for fault, _, _, person in rows] == [
        (fault.kind, KINDS[fault.kind].person) for fault in short()
    ]
