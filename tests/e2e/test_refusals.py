"""A release that lacks credentials, a kind of job or part of its archive; test_misconfigurations.py has the others."""

import pytest

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, until, why
from trainyard.cluster import inventory

pytestmark = [pytest.mark.e2e, pytest.mark.takes(25)]
NO_DATASET = ["--set", "dataset.enabled=false"]
CHANGES_OPERATORS = pytest.mark.skipif(
    not cluster.OWN, reason="it takes operators away, which only the cluster of `make cluster` may suffer"
)
MPIJOBS = "mpijobs.kubeflow.org"
ONE_JOB = ["--set", "mpijob.enabled=false"]


def uninstall(release: str, namespace: str) -> None:
    """Remove a release and its claims."""
    cluster.helm("uninstall", release, "-n", namespace, "--wait", "--ignore-not-found")
    kubectl("delete", "pvc", "-n", namespace, "-l", f"app.kubernetes.io/instance={release}", "--wait=false")


@pytest.fixture
def explained(namespace, install):
    """Return a function: install, wait until trainyard why says all of some words, and return what it said."""
    releases = []

    def do(release: str, *args: str, words: list[str]) -> str:
        releases.append(release)
        install(release, namespace, *args)
        seen = [""]

        def look() -> str:
            seen[0] = why(release, namespace)
            return seen[0] if all(word in seen[0] for word in words) else ""

        return until(lambda: f"trainyard why names {words}; it says:\n{seen[0]}", look, pause=1.0)

    yield do
    for release in releases:
        uninstall(release, namespace)


def test_missing_kaggle_credentials(explained):
    explained(
        "kaggle", *ONE_JOB, "--set", "dataset.source.kind=kaggle,dataset.source.competition=some,dataset.source.url=",
        words=["there are no Kaggle credentials", "without an upgrade"],
    )  # fmt: skip


@pytest.mark.alone
@CHANGES_OPERATORS
def test_a_missing_kind(namespace, install):
    programs = cluster.run("hack/cluster/build", "--where").stdout.strip()
    kubectl("delete", "crd", MPIJOBS)
    try:
        until("the kind is not served", lambda: not cluster.serves(MPIJOBS))
        inventory.definition.cache_clear()
        done = install("kind", namespace, *NO_DATASET, check=False)
        assert done.returncode != 0
        assert "ensure CRDs are installed first" in done.stderr
        said = why("kind", namespace)
        assert f"this cluster does not know {MPIJOBS}" in said
        assert "install mpi-operator" in said
        assert get("pvc", namespace, "app.kubernetes.io/instance=kind") == []
    finally:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", f"{programs}/manifests/mpi-operator.yaml")
        kubectl("-n", "mpi-operator", "rollout", "restart", "deployment/mpi-operator")
        kubectl("-n", "mpi-operator", "rollout", "status", "deployment/mpi-operator", "--timeout=24h")
        until("the kind is served again", lambda: cluster.serves(MPIJOBS))
        inventory.definition.cache_clear()
        uninstall("kind", namespace)


def test_an_archive_that_is_cut_short(explained, namespace, archive):
    kubectl("exec", "archive", "-n", namespace, "--", "sh", "-c", "head -c 1000000 /srv/fashion.zip > /srv/cut.zip")
    said = explained(
        "cut", *ONE_JOB, "--set", "dataset.source.url=http://archive/cut.zip", words=["prepare: waiting", "cut short"]
    )
    assert "remedy" in said
    claims = {c["metadata"]["name"]: c["status"]["phase"] for c in get("pvc", namespace)}
    assert claims["cut-data"] == "Bound"
