"""Nodes for each kind of pod: launcher and dataset elsewhere than the workers."""

import json
from collections.abc import Iterator

import pytest

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, until, why
from tests.e2e.saying import says

pytestmark = [pytest.mark.e2e, pytest.mark.takes(40)]


@pytest.fixture(scope="module")
def two_nodes(namespace) -> Iterator[tuple[str, str]]:
    """The names of two nodes that take pods, labelled `role.test=workers` and `role.test=rest`."""
    nodes = [
        node["metadata"]["name"]
        for node in json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
        if not node["spec"].get("unschedulable") and not node["spec"].get("taints")
    ]
    if len(nodes) < 2:
        pytest.skip("this cluster has one node that takes pods, and the test wants two")
    for node, role in zip(nodes, ("workers", "rest"), strict=False):
        kubectl("label", "node", node, f"role.test={role}", "--overwrite")
    yield nodes[0], nodes[1]
    for node in nodes[:2]:
        kubectl("label", "node", node, "role.test-")


APART = [
    "--set", "global.training.operator=mpijob,global.training.config.max_steps=2",
    "--set", "mpijob.runPolicy.suspend=false",
]  # fmt: skip


def on_nodes(namespace: str, release: str) -> dict[str, set[str]]:
    """Return the nodes of a release's pods, by what they are: dataset, launcher or worker."""
    found: dict[str, set[str]] = {}
    for pod in get("pods", namespace, f"app.kubernetes.io/instance={release}"):
        labels = pod["metadata"]["labels"]
        role = labels.get("training.kubeflow.org/job-role", labels["app.kubernetes.io/name"])
        found.setdefault(role, set()).add(pod["spec"].get("nodeName", ""))
    return found


def test_launcher_and_dataset_run_on_another_node_than_the_workers(namespace, archive, install, two_nodes):
    settings = "global.scheduling.nodeSelector.role\\.test=workers"
    others = ",".join(f"{part}.scheduling.nodeSelector.role\\.test=rest" for part in ("mpijob.launcher", "dataset"))
    install("apart", namespace, *APART, "--set", f"{settings},{others}")
    try:
        until(lambda: why("apart", namespace), lambda: "launcher" in on_nodes(namespace, "apart"))
        until(lambda: why("apart", namespace), lambda: "" not in set().union(*on_nodes(namespace, "apart").values()))
        workers, rest = two_nodes
        assert on_nodes(namespace, "apart") == {"dataset": {rest}, "launcher": {rest}, "worker": {workers}}
    finally:
        cluster.helm("uninstall", "apart", "-n", namespace, "--wait", "--ignore-not-found")


def test_a_part_leaves_the_nodes_of_the_others(namespace, archive, install):
    """On one node: where the trainers find none, the dataset is prepared all the same."""
    nowhere = "global.scheduling.nodeSelector.no=where"
    own = "dataset.scheduling.nodeSelector.kubernetes\\.io/os=linux"
    install("leaves", namespace, *APART, "--set", f"{nowhere},{own}")
    try:
        says("leaves", namespace, "Complete", "no node carries the labels")
        assert on_nodes(namespace, "leaves")["worker"] == {""}
    finally:
        cluster.helm("uninstall", "leaves", "-n", namespace, "--wait", "--ignore-not-found")
