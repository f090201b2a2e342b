"""What platform teams set, on the real operators: another user, folders of claims, closed networks, pods kept apart."""

import re

import pytest

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, until, why

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(900)]
RELEASE = "team"
SETTINGS = [
    "--set", "global.storage.uid=2001,global.storage.gid=2002",
    "--set", "global.storage.data.subPath=sets,global.storage.results.subPath=team-a/out",
    "--set", "global.training.config.epochs=1",
    "--set", "networkPolicy.enabled=true",
    "--set", "global.labels.team=vision",
    "--set", "mpijob.runPolicy.suspend=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def done(namespace, archive, install):
    """A release whose jobs have ended, run as another user in folders of its claims."""
    install(RELEASE, namespace, *SETTINGS)
    print(cluster.follow(RELEASE, namespace, 600))
    return namespace


@pytest.fixture(scope="module")
def logs(done, tmp_path_factory):
    """The pods' logs that are kept beside each run."""
    kept = {}
    for job in ("pytorchjob", "mpijob"):
        folder = tmp_path_factory.mktemp(job)
        cluster.run("scripts/fetch", RELEASE, f"runs/{RELEASE}-{job}/logs", folder, "-n", done)
        kept[job] = {path.name: path.read_text() for path in folder.iterdir()}
    return kept


def test_every_pod_is_that_user_and_carries_the_label(done):
    pods = get("pods", done, "-l", f"app.kubernetes.io/instance={RELEASE}")
    assert pods
    for pod in pods:
        assert pod["spec"]["securityContext"]["runAsUser"] == 2001
        assert pod["metadata"]["labels"]["team"] == "vision"


def test_the_pods_found_each_other_before_they_trained(logs):
    for name in ("master-0.log", "worker-0.log"):
        assert "2 pods reach each other" in logs["pytorchjob"][name]
    assert "finished: top1" in logs["pytorchjob"]["master-0.log"]


def test_the_launchers_log_outlives_it(logs):
    assert "4 processes on 2 nodes" in logs["mpijob"]["launcher.log"]
    assert "finished: top1" in logs["mpijob"]["launcher.log"]
    assert {"worker-0.log", "worker-1.log"} <= set(logs["mpijob"])


def test_a_port_that_differs_between_pods_is_named(done, image):
    """The manifest of another release, with one pod's port changed by hand."""
    text = cluster.helm(
        "template", "apart", "charts/trainyard", "-n", done, "-f", "examples/demo.yaml", *SETTINGS[:-2],
        "--set", f"global.image.registry={image['registry']},global.image.tag={image['tag']},mpijob.enabled=false",
        "--set", "dataset.enabled=false,networkPolicy.enabled=false,global.training.name=apart",
        "--set", f"global.storage.data.existingClaim={RELEASE}-data",
        "--set", f"global.storage.results.existingClaim={RELEASE}-results",
    ).stdout  # fmt: skip
    before, worker, after = re.split(r"(\n    Worker:)", text, maxsplit=1)
    after = after.replace('value: "23400"', 'value: "23499"')
    kubectl("apply", "-n", done, "-f", "-", stdin=before + worker + after)
    seen = [""]

    def look() -> str:
        seen[0] = why("apart", done)
        return seen[0] if "connection refused" in seen[0] and "global.training.peers.port" in seen[0] else ""

    try:
        until(lambda: f"scripts/why names the port; it says:\n{seen[0]}", look, 90)
    finally:
        kubectl("delete", "pytorchjob", "-n", done, "-l", "app.kubernetes.io/instance=apart")
    print(seen[0])
