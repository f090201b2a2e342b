"""The cluster that the end-to-end tests use, and their namespaces in it."""

import functools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO
from unittest import mock

import pytest

from tests.e2e import cluster, owners, undisturbed
from trainyard.cluster import kube
from trainyard.prepare import sample

LOCK = pytest.StashKey[TextIO | None]()


def operators_as_they_came() -> None:
    """Undo changes to the operators by a test that was killed in the middle."""
    cluster.run("hack/cluster/init-template", "restricted")
    cluster.kubectl("-n", "mpi-operator", "scale", "deployment/mpi-operator", "--replicas=1")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Use the cluster beside other runs, but not while a test changes it for all; with such a test, alone."""
    mine = [item for item in session.items if item.get_closest_marker("e2e")]
    if mine and not session.config.option.collectonly and Path(cluster.KUBECONFIG).exists():
        alone = any(item.get_closest_marker("alone") for item in mine) and "PYTEST_XDIST_WORKER" not in os.environ
        say = session.config.get_terminal_writer().line
        session.config.stash[LOCK] = owners.share(alone, operators_as_they_came, say)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test beside others that must be alone."""
    if item.get_closest_marker("alone") and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail("it changes the cluster for all tests: run it without -n, or leave it out with -m 'not alone'")


@pytest.fixture(scope="session")
def image() -> dict[str, str]:
    """Registry and tag of this tree's images, or of those of REGISTRY and TAG, which the cluster must hold."""
    assert Path(cluster.KUBECONFIG).exists(), "no cluster: run `make cluster images` first, or `make test-cluster`"
    return {
        "registry": os.environ.get("REGISTRY", "localhost"),
        "tag": os.environ.get("TAG") or cluster.run("hack/images/tag").stdout.strip(),
    }


@pytest.fixture(scope="session", autouse=True)
def no_leftovers(image) -> None:
    """Delete what test runs that were killed in the middle left in the cluster."""
    owners.delete_leftovers()


@pytest.fixture(scope="session")
def install(image):
    """Return a function that installs the chart with values files and settings."""

    def do(release: str, namespace: str, *args: str | Path, check: bool = True, values: str = "examples/demo.yaml"):
        settings = ["--set", f"global.image.registry={image['registry']},global.image.tag={image['tag']}"]
        settings += ["--set", "dataset.resources.requests.cpu=100m"]  # tests in parallel share a node of two CPUs
        return cluster.helm(
            "upgrade",
            "--install",
            release,
            "charts/trainyard",
            "-n",
            namespace,
            "-f",
            values,
            *settings,
            *args,
            check=check,
        )

    return do


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace that enforces the restricted Pod Security Standard, deleted afterwards."""
    name = f"{getattr(request.module, 'NAMESPACES', 'e2e')}-{secrets.token_hex(3)}"
    # created with its labels: admission reads them from a cache, which may lag behind a later change
    labels = owners.LABELS | {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    cluster.answered(lambda: kube.create("namespaces", "", made))
    # until then pods are refused
    cluster.until("its service account is there", lambda: cluster.get("serviceaccounts", name))
    yield name
    owners.delete("namespaces", name)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of the demo's archive, of 2,400 pictures for training and 400 for validation: one epoch of any test."""
    path = shared(tmp_path_factory) / "pictures" / "fashion.zip"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with mock.patch.object(sample, "PER_CLASS", {"train": 240, "val": 40}):
            sample.make_archive(path)
    return path


@pytest.fixture(scope="module")
def archive(namespace, image, request: pytest.FixtureRequest) -> str:
    """The pictures, or the demo's whole archive for a file with WHOLE, served in the namespace; returns the URL."""
    whole = getattr(request.module, "WHOLE", False)
    path = cluster.sample() if whole else request.getfixturevalue("pictures")
    cluster.run("scripts/demo/serve", namespace, f"{image['registry']}/trainyard-pytorch:{image['tag']}", path)
    return "http://archive/fashion.zip"


def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this run of tests, which its workers share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def calm(tmp_path_factory):
    """Return a function of data, settings and processes: the run directory of a training that nobody disturbs."""
    return functools.partial(undisturbed.train, shared(tmp_path_factory))


def add_on(name: str) -> None:
    """Start an add-on in the one-node cluster; skip where the user's own cluster lacks it."""
    done = cluster.run("hack/cluster/extra", name, check=cluster.OWN)
    if done.returncode:
        pytest.skip(done.stderr.strip())


@pytest.fixture(scope="session")
def trainer_v2() -> None:
    """Kubeflow Trainer v2 with JobSet; its progress in status is on."""
    add_on("trainer")


@pytest.fixture(scope="session")
def kueue() -> None:
    """Kueue, for Jobs, PyTorchJobs, MPIJobs, JobSets and TrainJobs; no queue is created."""
    add_on("kueue")


@pytest.fixture(scope="session")
def argocd() -> None:
    """Argo CD beside the cluster's pods, which reads git repositories of this machine by `file://`."""
    add_on("argocd")
