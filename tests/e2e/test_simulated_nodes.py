"""Small jobs of each operator on simulated nodes (benchmarks/cpu/jobs.py): the cluster's programs, and no cluster."""

import pytest

from benchmarks.cpu import jobs, simulated
from benchmarks.cpu.clients import table

# Soak: the programs start once more, and small jobs say little
pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.soak]


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> None:
    """Leave the cluster of the other tests alone: none is needed."""


def test_jobs_of_each_operator_start_and_are_counted() -> None:
    figures = jobs.measure([2, 4], list(jobs.PATHS), 0)
    found = {(one.part, one.what, one.clients): one.value for one in figures}
    for operator in jobs.PATHS:
        assert found[operator, "all run", 4] < simulated.SECONDS
        assert found[operator, "requests", 4] > 2 * 4  # each pod is created and placed
        assert 1 < found[operator, "the job", 4] < 1500  # etcd's limit
        assert all(found[operator, f"memory of {name}", 4] > 5 for name in jobs.PROGRAMS[operator])
    assert 1 < found["trainjob", "its JobSet", 4] < 1500
    assert "| mpijob | largest ConfigMap |" in table(figures, [2, 4])
