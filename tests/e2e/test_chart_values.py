"""What platform teams set, on the real operators: another user, folders of claims, closed networks, pods kept apart."""

import os
import re
from pathlib import Path

import pytest

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, until, why

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(4), pytest.mark.soak]
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
    print(cluster.follow(RELEASE, namespace))
    return namespace


@pytest.fixture(scope="module")
def logs(done, tmp_path_factory):
    """The pods' logs that are kept beside each run."""
    kept = {}
    for job in ("pytorchjob", "mpijob"):
        folder = tmp_path_factory.mktemp(job)
        cluster.run("trainyard", "fetch", RELEASE, f"runs/{RELEASE}-{job}/logs", folder, "-n", done)
        kept[job] = {path.name: path.read_text() for path in folder.iterdir()}
    return kept


def test_every_pod_is_that_user_and_carries_the_label(done):
    pods = get("pods", done, f"app.kubernetes.io/instance={RELEASE}")
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


def manifest(namespace: str, image: dict[str, str], *settings: str) -> str:
    """Return what another release on the same claims would apply."""
    return cluster.helm(
        "template", "apart", "charts/trainyard", "-n", namespace, "-f", "examples/demo.yaml", *SETTINGS[:-2],
        "--set", f"global.image.registry={image['registry']},global.image.tag={image['tag']},mpijob.enabled=false",
        "--set", "dataset.enabled=false,networkPolicy.enabled=false,global.training.name=apart",
        "--set", f"global.storage.data.existingClaim={RELEASE}-data,global.storage.data.size=",
        "--set", f"global.storage.results.existingClaim={RELEASE}-results,global.storage.results.size=",
        *settings,
    ).stdout  # fmt: skip


def drop(namespace: str) -> None:
    """Delete that release's objects, and wait until its pods have gone."""
    own = ("-n", namespace, "-l", "app.kubernetes.io/instance=apart")
    kubectl("delete", "pytorchjob,configmap", *own)
    until("pods gone", lambda: not get("pods", namespace, own[-1]))


@pytest.mark.skipif(not cluster.OWN, reason="it names an image inside the one-node cluster")
def test_an_image_that_comes_late_on_one_node_fails_nothing(done, image):
    """The Worker's init container fails and is retried until the Master's image exists."""
    text = manifest(done, image)
    name = f"{image['registry']}/trainyard-pytorch:{image['tag']}"
    first, worker, after = re.split(r"(\n    Worker:)", text, maxsplit=1)
    kubectl("apply", "-n", done, "-f", "-", stdin=first.replace(name, f"{name}-late") + worker + after)
    own = "app.kubernetes.io/instance=apart,training.kubeflow.org/replica-type=worker"

    def worker_pod() -> str:
        return "".join(pod["metadata"]["uid"] for pod in get("pods", done, own))

    try:
        before = until("the Worker is there", worker_pod)
        until("another Worker", lambda: worker_pod() not in ("", before))
        assert "Failed" not in why("apart", done)
        socket = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard")) / "run" / "containerd.sock"
        tag = ("ctr", "-a", socket, "-n", "k8s.io", "images", "tag", name, f"{name}-late")
        cluster.run("hack/cluster/in-node", *tag)
        print(cluster.follow("apart", done))
        cluster.run("hack/cluster/in-node", *tag[:5], "images", "rm", f"{name}-late")
    finally:
        drop(done)
