"""Late Secrets, archives and credentials. The release waits, says so, and continues without an upgrade."""

import json
from collections.abc import Iterator

import pytest

from tests.e2e import cluster, misconfigured, owners
from tests.e2e.cluster import get, kubectl, until
from tests.e2e.owners import LABELS
from tests.e2e.saying import says

pytestmark = [pytest.mark.e2e, pytest.mark.takes(60)]
ALONE = ["--set", "pytorchjob.enabled=false,mpijob.enabled=false"]
ONE = [
    "--set", "mpijob.enabled=false,dataset.enabled=false,global.training.nodes=1,global.training.processesPerNode=1",
    "--set", "global.training.config.max_steps=2,global.training.config.model.num_classes=0,global.dataset.name=whole",
    "--set", "global.storage.data.existingClaim=data,global.storage.data.size=",
    "--set", "global.storage.results.existingClaim=results,global.storage.results.size=",
]  # fmt: skip
STORES = "externalsecrets.external-secrets.io"


def jobs(namespace: str, release: str) -> dict[str, str]:
    """Return the uids of a release's dataset Jobs, by name."""
    found = get("jobs", namespace, f"app.kubernetes.io/instance={release},app.kubernetes.io/name=dataset")
    return {job["metadata"]["name"]: job["metadata"]["uid"] for job in found}


@pytest.fixture
def release(request, namespace) -> Iterator[str]:
    """A name for a release, which is uninstalled afterwards."""
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:32].strip("-")
    yield name
    cluster.helm("uninstall", name, "-n", namespace, "--wait", "--ignore-not-found")
    kubectl("delete", "pvc", "-n", namespace, "-l", f"app.kubernetes.io/instance={name}", "--wait=false")


def test_an_archive_that_comes_late(release, namespace, archive, install):
    settings = [*ALONE, "--set", "dataset.source.url=http://archive/late.zip"]
    install(release, namespace, *settings)
    said = says(release, namespace, "late.zip", "404", "(retried in")
    assert "without an upgrade" in said
    before = jobs(namespace, release)
    install(release, namespace, *settings)
    assert jobs(namespace, release) == before, "an unchanged upgrade changes nothing"
    kubectl("exec", "archive", "-n", namespace, "--", "cp", "/srv/fashion.zip", "/srv/late.zip")
    says(release, namespace, "Complete")
    assert jobs(namespace, release) == before


def test_a_named_secret_that_comes_late(release, namespace, archive, install):
    install(release, namespace, *ALONE, "--set", "global.secrets.http.existingSecret=late")
    assert "the pod waits for it" in says(release, namespace, 'secret "late" not found')
    kubectl(
        "create",
        "secret",
        "generic",
        "late",
        "-n",
        namespace,
        "--from-literal=netrc=machine nowhere login a password b",
    )
    says(release, namespace, "Complete")


def test_a_job_whose_deadline_is_over_is_made_again_by_the_same_upgrade(release, namespace, archive, install):
    settings = [*ALONE, "--set", "dataset.source.url=http://archive/later.zip,dataset.activeDeadlineSeconds=3600"]
    install(release, namespace, *settings)
    (job,) = get("jobs", namespace, f"app.kubernetes.io/instance={release}")
    assert job["spec"]["activeDeadlineSeconds"] == 3600
    # its time is over now; that of the next Job holds a preparation on a busy machine, too
    over = '{"spec": {"activeDeadlineSeconds": 1}}'
    kubectl("patch", "job", job["metadata"]["name"], "-n", namespace, "--type=merge", "-p", over)
    assert "delete the job and upgrade" in says(release, namespace, "Failed", "activeDeadlineSeconds is over")
    before = jobs(namespace, release)
    kubectl("exec", "archive", "-n", namespace, "--", "cp", "/srv/fashion.zip", "/srv/later.zip")
    kubectl("delete", "job", *before, "-n", namespace)
    install(release, namespace, *settings)
    after = jobs(namespace, release)
    assert after.keys() == before.keys()
    assert after != before
    says(release, namespace, "Complete")


def kind_of_external_secrets() -> dict:
    """Describe ExternalSecret as a kind that takes anything: the operator is not here, the test acts for it."""
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                 "schema": {"openAPIV3Schema": loose}}]  # fmt: skip
    names = {"kind": "ExternalSecret", "plural": "externalsecrets", "singular": "externalsecret"}
    spec = {"group": "external-secrets.io", "scope": "Namespaced", "names": names, "versions": versions}
    meta = {"name": STORES, "labels": LABELS}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}


@pytest.fixture
def external_secrets(namespace) -> Iterator[None]:
    """The kind ExternalSecret, if the cluster does not know it."""
    if kubectl("get", "crd", STORES, "--ignore-not-found"):
        pytest.skip("this cluster has External Secrets Operator, for which the test cannot act")
    misconfigured.apply(namespace, kind_of_external_secrets())
    until("the kind is served", lambda: cluster.serves(STORES))
    yield
    owners.delete("customresourcedefinitions", STORES)


@pytest.mark.alone
def test_a_secret_that_an_operator_makes_late(release, namespace, image, install, external_secrets):
    misconfigured.seed(namespace, f"{image['registry']}/trainyard-pytorch:{image['tag']}")
    external = "secrets.enabled=true,secrets.external.store.name=vault,secrets.external.wandb.remoteKey=team/wandb"
    install(release, namespace, *ONE, "--set", f"{external},global.training.config.wandb.mode=off")
    said = says(release, namespace, "a Secret that an operator creates")
    assert "see the line of its ExternalSecret" in said
    assert f"externalsecret/{release}-wandb" in said
    kubectl("create", "secret", "generic", f"{release}-wandb", "-n", namespace, "--from-literal=WANDB_API_KEY=none")
    # a kubelet mounts it when it looks at the pod next: within 90 seconds, or when the pod changes
    kubectl("annotate", "pods", "--all", "-n", namespace, "trainyard/look-again=1")
    says(release, namespace, "Succeeded")


@pytest.mark.alone
def test_a_secret_that_an_operator_never_makes(release, namespace, image, install, external_secrets):
    misconfigured.seed(namespace, f"{image['registry']}/trainyard-pytorch:{image['tag']}")
    external = "secrets.enabled=true,secrets.external.store.name=vault,secrets.external.wandb.remoteKey=team/wandb"
    install(release, namespace, *ONE, "--set", f"{external},secrets.external.wait=10")
    said = says(release, namespace, "did not appear within 10 s", "a longer secrets.external.wait")
    job = json.loads(kubectl("get", "pytorchjob", "-n", namespace, "-o", "json"))["items"]
    assert job, said
