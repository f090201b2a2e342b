"""Another version of an operator in the place of the one that the cluster has otherwise (hack/versions)."""

from tests.e2e import cluster
from tests.e2e.cluster import get
from trainyard.cluster import inventory

NEWEST = {"trainer": "2.3", "mpi-operator": "0.8"}
CONTROLLERS = {
    "trainer": {
        "Kubeflow Trainer": ("kubeflow-system", "kubeflow-trainer-controller-manager"),
        "JobSet": ("jobset-system", "jobset-controller-manager"),
    },
    "mpi-operator": {"mpi-operator": ("mpi-operator", "mpi-operator")},
}
Versions = dict[str, str]  # by program


def put(add_on: str, version: str) -> Versions:
    """Put a version in the place of the one that is there; return those that its controllers' images have."""
    key = f"TRAINYARD_{add_on.upper().replace('-', '_')}"
    named = "" if version == NEWEST[add_on] else version
    cluster.run("env", f"{key}={named}", "hack/cluster/extra", add_on)
    inventory.definition.cache_clear()
    found = {}
    for program, (space, name) in CONTROLLERS[add_on].items():
        (one,) = [one for one in get("deployments", space) if one["metadata"]["name"] == name]
        image = one["spec"]["template"]["spec"]["containers"][0]["image"]
        found[program] = image.rpartition(":v")[2].rpartition("-")[0]
    return found
