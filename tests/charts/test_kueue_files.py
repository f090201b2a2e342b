"""The files of docs/kueue.md: valid against the real CRDs, and their runs fit the queues. cpu/ runs in tests/e2e."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from . import helm

KUEUE = helm.ROOT / "examples" / "kueue"
QUEUES = [KUEUE, KUEUE / "cpu"]
RUNS = [folder / name for folder in QUEUES for name in ("run.yaml", "deadline.yaml")]
UNITS = {"Gi": 1 << 30, "Mi": 1 << 20, "m": 0.001, "": 1}
LABEL = "kueue.x-k8s.io/"


def identify(path: Path) -> str:
    """Name a file in a test's name."""
    return str(path.relative_to(helm.ROOT / "examples"))


@pytest.mark.parametrize("folder", QUEUES, ids=identify)
def test_the_objects_match_the_schemas_of_their_controllers(folder: Path):
    text = (folder / "queues.yaml").read_text()
    helm.validate(text)
    with pytest.raises(helm.HelmError, match="additional properties 'specc' not allowed"):
        helm.validate(text.replace("\nspec:", "\nspecc:", 1))


def test_what_mpi_operator_lacks_is_given_to_its_own_account():
    role, binding = helm.documents((KUEUE / "mpi-operator.yaml").read_text())
    helm.validate((KUEUE / "mpi-operator.yaml").read_text())
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert role["rules"] == [{"apiGroups": ["batch"], "resources": ["jobs/status"], "verbs": ["update"]}]


def number(quantity: Any) -> float:
    """Return a quantity as a number."""
    digits, unit = re.fullmatch(r"([0-9.]+)(\D*)", str(quantity)).groups()
    return float(digits) * UNITS[unit]


def templates(job: helm.Values) -> list[tuple[int, helm.Values]]:
    """Return a job's pod specs, each with how many there are."""
    if job["kind"] == "Job":
        return [(job["spec"].get("parallelism", 1), job["spec"]["template"]["spec"])]
    kinds = next(value for key, value in job["spec"].items() if key.endswith("ReplicaSpecs")).values()
    return [(one["replicas"], one["template"]["spec"]) for one in kinds]


def asked(job: helm.Values) -> dict[str, float]:
    """Return what the pods of a job ask for together, as Kueue counts: init containers or the others."""
    total: dict[str, float] = {}
    for replicas, pod in templates(job):
        containers, first = (
            [{**one["resources"].get("limits", {}), **one["resources"].get("requests", {})} for one in pod.get(key, [])]
            for key in ("containers", "initContainers")
        )
        for name in {key for one in (*containers, *first) for key in one}:
            most = max(
                sum(number(one.get(name, 0)) for one in many) for many in (containers, *([one] for one in first))
            )
            total[name] = total.get(name, 0) + most * replicas
    return total


def queues(folder: Path) -> tuple[dict[str, list[helm.Values]], dict[str, float]]:
    """Return a folder's objects by kind, and the quota of its ClusterQueue."""
    objects: dict[str, list[helm.Values]] = {}
    for one in helm.documents((folder / "queues.yaml").read_text()):
        objects.setdefault(one["kind"], []).append(one)
    (group,) = objects["ClusterQueue"][0]["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == objects["ResourceFlavor"][0]["metadata"]["name"]
    quota = {one["name"]: number(one["nominalQuota"]) for one in flavor["resources"]}
    assert quota.keys() == set(group["coveredResources"])
    return objects, quota


def jobs(path: Path) -> list[helm.Values]:
    """Return the jobs that values render, with an image where they name none; the same on both Helms, and valid."""
    values = helm.merged(
        helm.at("global.image", {"registry": "localhost", "tag": "1"}), yaml.safe_load(path.read_text())
    )
    return [one for one in helm.documents(helm.rendered(values)) if one["kind"].endswith("Job")]


@pytest.mark.parametrize("path", [*RUNS, KUEUE / "s3.yaml"], ids=identify)
def test_a_queued_run_names_a_queue_that_could_admit_it(path: Path):
    objects, quota = queues(path.parent)
    (queue,) = objects["LocalQueue"]
    assert queue["spec"]["clusterQueue"] == objects["ClusterQueue"][0]["metadata"]["name"]
    priorities = {one["metadata"]["name"] for one in objects["WorkloadPriorityClass"]}
    for job in jobs(path):
        labels = job["metadata"]["labels"]
        assert labels[f"{LABEL}queue-name"] == queue["metadata"]["name"]
        assert labels.get(f"{LABEL}priority-class", "deadline") in priorities
        assert "suspend" not in str(job["spec"]), "Kueue's webhook sets it"
        wanted = asked(job)
        assert wanted.keys() <= quota.keys()
        assert all(wanted[name] <= quota[name] for name in wanted), (job["kind"], wanted, quota)


@pytest.mark.parametrize(
    ("folder", "resource"), [(QUEUES[0], "nvidia.com/gpu"), (QUEUES[1], "cpu")], ids=["gpu", "cpu"]
)
def test_both_runs_together_are_more_than_the_quota(folder: Path, resource: str):
    """Else the priority of the one would show nothing."""
    _, quota = queues(folder)
    trainers = [one for path in RUNS if path.parent == folder for one in jobs(path) if one["kind"] != "Job"]
    assert sum(asked(job)[resource] for job in trainers) > quota[resource]


def test_a_dataset_goes_before_the_runs_that_wait_for_it():
    objects, _ = queues(KUEUE)
    values = {one["metadata"]["name"]: one["value"] for one in objects["WorkloadPriorityClass"]}
    (dataset,) = [one for one in jobs(KUEUE / "run.yaml") if one["kind"] == "Job"]
    assert 0 < values[dataset["metadata"]["labels"][f"{LABEL}priority-class"]] < values["deadline"]
