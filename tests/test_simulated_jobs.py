"""The benchmark of jobs of many pods on simulated nodes: what it counts. tests/e2e/test_simulated_nodes.py runs it."""

from collections import Counter

import pytest

from benchmarks.cpu import jobs, simulated


def test_requests_are_counted_by_who_made_them_without_the_simulated_kubelets() -> None:
    made = Counter({
        ("training-operator", "create", "pods"): 8, ("training-operator", "update", "pytorchjobs/status"): 3,
        ("kube-scheduler", "create", "pods/binding"): 8, (simulated.KUBELETS, "patch", "pods/status"): 8,
        ("kubectl", "create", "configmaps"): 2,
    })  # fmt: skip
    found = {one.what: one.value for one in jobs.figures("pytorchjob", 8, 4.5, made)}
    assert found == {
        "all run": 4.5,
        "requests": 19,
        "requests of training-operator": 11,
        "requests of kube-scheduler": 8,
    }


def test_an_objects_size_is_that_of_its_text() -> None:
    assert jobs.size_of({"a": "x" * 990}) == pytest.approx(1.0, abs=0.01)
