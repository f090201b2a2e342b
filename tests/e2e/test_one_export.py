"""Two namespaces whose volumes are one export, with a release of the same name: the second one's run is refused."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import cluster, owners
from tests.e2e.cluster import get, kubectl, until, why
from tests.e2e.misconfigured import apply, claim
from tests.e2e.owners import LABELS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.ranks(1),
    pytest.mark.takes(60),
    pytest.mark.skipif(
        not cluster.OWN, reason="it needs a folder of the node, which the user's own cluster may refuse"
    ),
]
RELEASE = "run"
SETTINGS = [
    "--set", "global.storage.data.existingClaim=data,global.storage.data.size=",
    "--set", "global.storage.results.existingClaim=results,global.storage.results.size=",
    "--set", "mpijob.enabled=false,global.training.nodes=1,global.training.processesPerNode=1",
    "--set", "global.training.config.max_steps=6,global.training.config.batch.global=192",
    "--set", "global.training.config.wandb.mode=off",
]  # fmt: skip


@contextlib.contextmanager
def exported(place: Path, namespaces: list[str]) -> Iterator[None]:
    """A folder of the node as the claims `data` and `results` of several namespaces, each with its own volumes."""
    names = []
    cluster.run("hack/cluster/in-node", "sh", "-c", f"mkdir -m 0777 {place} {place}/data {place}/results")
    cluster.run("hack/cluster/in-node", "chmod", "0777", place, f"{place}/data", f"{place}/results")
    try:
        for namespace in namespaces:
            for which in ("data", "results"):
                names.append(f"{place.name}-{which}-{len(names)}")
                volume = {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": names[-1], "labels": LABELS},
                    "spec": {
                        "accessModes": ["ReadWriteMany"],
                        "capacity": {"storage": "1Mi"},
                        "hostPath": {"path": f"{place}/{which}"},
                        "claimRef": {"namespace": namespace, "name": which},
                        "persistentVolumeReclaimPolicy": "Retain",
                    },
                }
                apply(namespace, volume, claim(which, storageClassName="", volumeName=names[-1]))
        yield
    finally:
        for name in names:
            owners.delete("persistentvolumes", name)
        cluster.run("hack/cluster/in-node", "rm", "-rf", place)


@pytest.fixture(scope="module")
def second() -> Iterator[str]:
    """Another namespace, deleted afterwards."""
    name = f"e2e-{secrets.token_hex(3)}"
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, *(f"{key}={value}" for key, value in LABELS.items()))
    yield name
    owners.delete("namespaces", name)


@pytest.fixture(scope="module")
def export(namespace, second) -> Iterator[Path]:
    """The folder of the node that both namespaces mount."""
    place = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard")) / "run" / f"export-{secrets.token_hex(3)}"
    with exported(place, [namespace, second]):
        yield place


def results(export: Path) -> str:
    """What lies on the export: names, sizes and times, without the lease's own files."""
    listed = cluster.run("hack/cluster/in-node", "find", f"{export}/results", "-type", "f", "-printf", "%p %s %T@\\n")
    return "\n".join(sorted(line for line in listed.stdout.splitlines() if "/leases/" not in line))


def test_the_second_namespace_is_refused_with_the_remedy(namespace, second, archive, export, install):
    install(RELEASE, namespace, *SETTINGS)
    cluster.follow(RELEASE, namespace)
    before = results(export)
    assert "summary.json" in before

    longer = ["--set", "dataset.enabled=false,global.training.config.max_steps=8"]
    install(RELEASE, second, *SETTINGS, *longer)
    job = until(
        lambda: f"the second job fails; trainyard why says:\n{why(RELEASE, second)}",
        lambda: [one for one in get("pytorchjobs", second) if failed(one)],
    )
    assert len(job) == 1
    said = why(RELEASE, second)
    assert f"belongs to release {namespace}/{RELEASE}" in said, said
    assert f"this is {second}/{RELEASE}" in said
    assert "run.adopt" in said
    assert results(export) == before, "a stranger leaves no trace"

    install(RELEASE, second, *SETTINGS, *longer, "--set", "global.training.config.run.adopt=true")
    cluster.follow(RELEASE, second)
    lease = cluster.run("hack/cluster/in-node", "cat", f"{export}/results/runs/{RELEASE}/lease.json")
    assert json.loads(lease.stdout)["owner"] == f"{second}/{RELEASE}"


def failed(job: dict) -> bool:
    """Whether a job has failed for good."""
    conditions = job.get("status", {}).get("conditions", [])
    return any(one["type"] == "Failed" and one["status"] == "True" for one in conditions)
