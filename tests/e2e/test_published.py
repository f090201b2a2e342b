"""The chart from a registry, with TLS and a password: it installs, trains with images named by digest, and is tested.

The images are on the node already, under the names by which the published chart asks for them.
"""

import os
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.charts import helm
from tests.e2e import cluster, gitops, owners
from tests.e2e.cluster import get, kubectl, until
from tests.e2e.pushed import VERSION, Published, publish
from tests.fakes import registry as registries

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.ranks(1),
    pytest.mark.takes(90),
    pytest.mark.skipif(not cluster.OWN, reason="it names images of the one-node cluster by their digests"),
]
NAMESPACES = "publish"
ADDRESS = os.environ.get("TRAINYARD_HOST_IP", "10.90.0.1")  # this machine's end of the cable to the node
LONG = ("--timeout", "24h")  # for a test that ends by itself
VALUES = {
    "global": {
        "storage": {"data": {"size": "1Gi"}, "results": {"size": "1Gi"}},
        "dataset": {"name": "fashion"},
        "training": {
            "nodes": 1, "processesPerNode": 1, "recipe": "demo", "shmSize": "64Mi",
            "config": {"max_steps": 2, "batch": {"global": 16}, "wandb": {"mode": "off"}},
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "4Gi"}},
        },
    },
    "dataset": {
        "source": {"url": "http://archive/fashion.zip"},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
    },
    "tests": {"enabled": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def published(image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """The chart of this tree in a registry, naming the node's images by digest under that registry's name."""
    with publish(image, tmp_path_factory.mktemp("published"), ADDRESS) as found:
        yield found


def run_helm(published: Published, *words: str, program: str = "helm3", check: bool = True):
    """Run Helm in this cluster, logged in to the registry; values come from standard input."""
    env = [f"{name}={published.env[name]}" for name in ("SSL_CERT_FILE", "HELM_REGISTRY_CONFIG")]
    return cluster.run("env", *env, f"build/bin/{program}", *words, stdin=yaml.safe_dump(VALUES), check=check)


@pytest.fixture(scope="module")
def installed(published: Published, namespace: str, archive: str) -> str:
    """A release installed from the registry by one command, run to its end."""
    run_helm(published, "install", "run", published.chart, "--version", VERSION, "-n", namespace, "-f", "-")
    cluster.follow("run", namespace)
    return namespace


def test_every_pod_ran_an_image_by_the_digest_of_the_published_chart(published, installed):
    pods = get("pods", installed, "app.kubernetes.io/instance=run")
    assert {pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods} == {"dataset", "pytorchjob"}
    wanted = published.image("trainyard-pytorch")
    for pod in pods:
        spec = pod["spec"]
        assert {one["image"] for one in spec["containers"] + spec.get("initContainers", [])} == {wanted}
        assert pod["status"]["phase"] == "Succeeded"


@pytest.mark.parametrize("program", helm.HELMS)
def test_helm_test_finds_the_installation_sound(published, installed, program):
    said = run_helm(published, "test", "run", "-n", installed, *LONG, program=program).stdout
    assert re.search(r"Phase: +Succeeded", said), said
    until("its pod is gone", lambda: not get("pods", installed, fields="metadata.name=run-test"))


def test_an_upgrade_to_the_same_chart_changes_nothing(published, installed):
    kinds = "jobs,pytorchjobs.kubeflow.org,configmaps"
    names = {one["metadata"]["name"] for one in get(kinds, installed)}
    upgrade = ("upgrade", "run", published.chart, "--version", VERSION, "-n", installed, "-f", "-")
    run_helm(published, *upgrade, program="helm3")
    assert {one["metadata"]["name"] for one in get(kinds, installed)} == names


def test_helm_test_names_the_file_that_is_wrong(published, installed):
    """The dataset's validation shard loses its end, as by a disk; a later `helm test` says so."""
    claim = kubectl("get", "pvc", "run-data", "-n", installed, "-o", "jsonpath={.spec.volumeName}")
    path = kubectl("get", "pv", claim, "-o", "jsonpath={.spec.hostPath.path}{.spec.local.path}")
    cluster.run("hack/cluster/in-node", "sh", "-ec", f"truncate -s 100 {path}/fashion/val/shard-00000.tar")
    done = run_helm(published, "test", "run", "-n", installed, *LONG, check=False)
    assert done.returncode
    said = kubectl("logs", "run-test", "-n", installed)
    assert "val/shard-00000.tar" in said, said


@pytest.fixture(scope="module")
def application(published, installed, argocd) -> Iterator[str]:
    """deploy/argocd/published.yaml with the registry's names, and values that train on the release's claims."""
    name = f"{installed}-run"
    secret, one = yaml.safe_load_all((gitops.DEPLOY / "published.yaml").read_text())
    secret["metadata"] |= {"name": name, "namespace": gitops.ARGOCD}
    secret["metadata"]["labels"] |= owners.LABELS
    login = {"username": registries.USER, "password": registries.PASSWORD, "insecure": "true"}
    secret["stringData"] |= login | {"url": published.chart}
    claims = {which: {"existingClaim": f"run-{which}"} for which in ("data", "results")}
    values = helm.merged(VALUES, {"dataset": {"enabled": False}, "tests": {"enabled": False}})
    values["global"] |= {"storage": claims}
    values["global"]["training"]["name"] = "by-argo"
    one["metadata"] |= {"name": name, "namespace": gitops.ARGOCD, "labels": owners.LABELS}
    one["spec"]["source"] |= {"repoURL": published.chart, "targetRevision": VERSION}
    one["spec"]["source"]["helm"] = {"releaseName": "by-argo", "valuesObject": values}
    one["spec"]["destination"]["namespace"] = installed
    del one["spec"]["syncPolicy"]["managedNamespaceMetadata"]
    for thing in (secret, one):
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump(thing))
    yield name
    for kind in ("applications.argoproj.io", "secrets"):
        owners.delete(kind, name, gitops.ARGOCD)


def test_argo_cd_deploys_it_from_the_registry(published, installed, application):
    found = gitops.becomes(application, lambda one: gitops.state(one)[0] == "Synced", "is in sync")
    assert found["status"]["sync"]["revision"].startswith("sha256:")
    until("the job is there", lambda: get("pytorchjobs.kubeflow.org", installed, "app.kubernetes.io/instance=by-argo"))
    (job,) = get("pytorchjobs.kubeflow.org", installed, "app.kubernetes.io/instance=by-argo")
    assert published.image("trainyard-pytorch") in str(job["spec"])
