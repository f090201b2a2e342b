"""The cluster that the end-to-end tests use, and namespaces of their own in it."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import cluster

MARK = "trainyard.test"  # label of the namespaces that tests make


@pytest.fixture(scope="session")
def image() -> dict[str, str]:
    """Registry and tag of this tree's images, which the cluster must hold."""
    assert Path(cluster.KUBECONFIG).exists(), "no cluster: run `make cluster images` first, or `make test`"
    return {
        "registry": os.environ.get("REGISTRY", "localhost"),
        "tag": cluster.run("scripts/images/tag").stdout.strip(),
    }


@pytest.fixture(scope="session", autouse=True)
def undisturbed(image) -> None:
    """Undo what a test run that was killed in the middle may have left in the cluster."""
    cluster.kubectl("delete", "namespace,pv,storageclass", "-l", f"{MARK}=e2e", "--wait=false")
    if cluster.OWN:
        cluster.kubectl("-n", "local-path-storage", "delete", "deployment,configmap", "-l", f"{MARK}=e2e")
        cluster.run("scripts/cluster/init-template", "restricted")
        cluster.kubectl("-n", "mpi-operator", "scale", "deployment/mpi-operator", "--replicas=1")


@pytest.fixture(scope="session")
def install(image):
    """Return a function that installs the chart with values files and settings."""

    def do(release: str, namespace: str, *args: str | Path, check: bool = True, values: str = "examples/demo.yaml"):
        settings = ["--set", f"global.image.registry={image['registry']}", "--set", f"global.image.tag={image['tag']}"]
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
def namespace() -> Iterator[str]:
    """A namespace that enforces the restricted Pod Security Standard, deleted afterwards."""
    name = f"e2e-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, f"{MARK}=e2e", "pod-security.kubernetes.io/enforce=restricted",
                    "pod-security.kubernetes.io/warn=restricted")  # fmt: skip
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def archive(namespace, image) -> str:
    """The demo's archive, served in the namespace; returns its URL."""
    cache = Path(os.environ.get("TRAINYARD_CACHE", Path.home() / ".cache" / "trainyard"))
    path = cache / "sample" / "fashion.zip"
    if not path.exists():
        cluster.run(".venv/bin/python", "scripts/demo/make_archive.py", path)
    cluster.run("scripts/demo/serve", namespace, f"{image['registry']}/trainyard-pytorch:{image['tag']}", path)
    return "http://archive/fashion.zip"
