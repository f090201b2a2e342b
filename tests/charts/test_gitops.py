"""The files of docs/kueue.md: valid against the real CRDs, and what they start renders."""

import re
from pathlib import Path
from typing import Any

import pytest

from . import helm

KUEUE = helm.ROOT / "examples" / "kueue"
QUEUED = [path for path in sorted(KUEUE.glob("*.yaml")) if path.name != "queues.yaml"]
UNITS = {"Gi": 1 << 30, "Mi": 1 << 20, "m": 0.001, "": 1}


@pytest.mark.parametrize("path", [KUEUE / "queues.yaml"], ids=lambda path: path.stem)
def test_the_objects_match_the_schemas_of_their_controllers(path: Path):
    helm.validate(path.read_text())
    with pytest.raises(helm.HelmError, match="additional properties 'specc' not allowed"):
        helm.validate(path.read_text().replace("\nspec:", "\nspecc:", 1))


def number(quantity: Any) -> float:
    """Return a quantity as a number."""
    digits, unit = re.fullmatch(r"([0-9.]+)(\D*)", str(quantity)).groups()
    return float(digits) * UNITS[unit]


def asked(job: helm.Values) -> dict[str, float]:
    """Return what the pods of a job ask for together, as Kueue counts: init containers or the others."""
    total: dict[str, float] = {}
    for replica in next(value for key, value in job["spec"].items() if key.endswith("ReplicaSpecs")).values():
        pod = replica["template"]["spec"]
        containers, first = (
            [{**one["resources"].get("limits", {}), **one["resources"].get("requests", {})} for one in pod.get(key, [])]
            for key in ("containers", "initContainers")
        )
        for name in {key for one in (*containers, *first) for key in one}:
            most = max(
                sum(number(one.get(name, 0)) for one in many) for many in (containers, *([one] for one in first))
            )
            total[name] = total.get(name, 0) + most * replica["replicas"]
    return total


@pytest.mark.parametrize("path", QUEUED, ids=lambda path: path.stem)
def test_a_queued_run_names_a_queue_that_could_admit_it(path: Path):
    objects = {one["kind"]: one for one in helm.documents((KUEUE / "queues.yaml").read_text())}
    (job,) = [one for one in helm.rendered(path, "run") if one["kind"] in ("PyTorchJob", "MPIJob")]
    labels = job["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == objects["LocalQueue"]["metadata"]["name"]
    assert (
        labels.get("kueue.x-k8s.io/priority-class", "deadline") == objects["WorkloadPriorityClass"]["metadata"]["name"]
    )
    assert objects["LocalQueue"]["spec"]["clusterQueue"] == objects["ClusterQueue"]["metadata"]["name"]
    assert "suspend" not in job["spec"]["runPolicy"], "Kueue's webhook sets it"
    (group,) = objects["ClusterQueue"]["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == objects["ResourceFlavor"]["metadata"]["name"]
    quota = {one["name"]: number(one["nominalQuota"]) for one in flavor["resources"]}
    assert quota.keys() == set(group["coveredResources"])
    wanted = asked(job)
    assert wanted.keys() <= quota.keys()
    assert all(wanted[name] <= quota[name] for name in wanted), (wanted, quota)


def test_both_runs_together_are_more_than_the_quota():
    """Else the priority of the one would show nothing."""
    objects = {one["kind"]: one for one in helm.documents((KUEUE / "queues.yaml").read_text())}
    resources = objects["ClusterQueue"]["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    quota = {one["name"]: number(one["nominalQuota"]) for one in resources}
    jobs = [one for path in QUEUED for one in helm.rendered(path, "run") if one["kind"] in ("PyTorchJob", "MPIJob")]
    assert sum(asked(job)["nvidia.com/gpu"] for job in jobs) > quota["nvidia.com/gpu"]
