"""`ct lint` of the chart, and helm-unittest's tests of its parts, as ct.yaml has them."""

from pathlib import Path

from tests import patience


def test_chart_testing_passes() -> None:
    done = patience.run(["hack/ct-lint"], cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
