"""What is rendered fits the CRDs of the other operators that a release is run with: mpi-operator, JobSet and Kueue.

Those of Kubeflow Trainer, for which the chart renders by `trainjob.version`, are in test_trainer_versions.py.
"""

import json
from pathlib import Path

import pytest

from trainyard.cluster import crds, trainjobs

from . import helm, test_program
from .test_trainer_versions import CASES, NEWEST, VERSIONS, for_version

OTHERS = helm.ROOT / "hack" / "versions"
KUEUE = helm.ROOT / "examples" / "kueue"
# Values for which an MPIJob has all that the chart knows to render
MPI_FULL: helm.Values = helm.merged(
    helm.everything(),
    helm.at("global.training.operator", "mpijob"),
    helm.at("global.training.rdma.resource", "rdma/ib"),
    helm.at("global.metrics.enabled", True),
    helm.at("global.scheduling", {"queue": "vision", "gang": {"enabled": True, "queue": "a", "timeoutSeconds": 60}}),
    helm.at("mpijob.runPolicy", {
        "cleanPodPolicy": "All", "backoffLimit": 3, "ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 600,
        "suspend": True, "managedBy": "kueue.x-k8s.io/multikueue",
    }),
)  # fmt: skip
MPI: dict[str, helm.Values] = {
    "small": helm.merged(helm.everything(), helm.at("global.training.operator", "mpijob")),
    "full": MPI_FULL,
    "a program": test_program.values("mpijob"),
}  # fmt: skip


def folders(program: str) -> list[str]:
    """Return the folders of hack/versions that have another version of a program."""
    found = sorted(path.parent.name for path in OTHERS.glob(f"*/{program}"))
    assert found, program
    return found


def jobs(values: helm.Values) -> list[helm.Values]:
    """Return the MPIJobs that values become."""
    found = [one for one in helm.documents(helm.template(values)) if one["kind"] == "MPIJob"]
    assert found
    return found


def fit(folder: str, objects: list[helm.Values]) -> None:
    """Check objects against the CRDs of a folder of hack/versions; raises HelmError with what does not fit."""
    helm.validate("\n---\n".join(map(json.dumps, objects)), folder)


@pytest.mark.parametrize("folder", folders("mpi-operator"))
@pytest.mark.parametrize("values", MPI.values(), ids=MPI)
def test_an_mpijob_fits_the_crd_of_an_earlier_mpi_operator(values: helm.Values, folder: str) -> None:
    fit(folder, jobs(values))


@pytest.mark.parametrize("folder", folders("mpi-operator"))
def test_a_field_that_a_crd_lacks_is_found(folder: str) -> None:
    (job,) = jobs(MPI["small"])
    job["spec"]["runPolicy"]["later"] = True
    with pytest.raises(helm.HelmError, match="'later' not allowed"):
        fit(folder, [job])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_what_trainer_makes_of_a_runtime_fits_the_jobset_that_it_asks_for(values: helm.Values, version: str) -> None:
    """A JobSet has the runtime's template; a field that it does not know would be dropped without a word."""
    folder = "" if version == NEWEST else f"trainer-{version}"
    found = [one for one in helm.documents(for_version(version, values)) if one["kind"] == "TrainingRuntime"]
    made = [
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "one"},
         "spec": one["spec"]["template"]["spec"]}
        for one in found
    ]  # fmt: skip
    assert made
    fit(folder, made)
    made[0]["spec"]["later"] = True
    with pytest.raises(helm.HelmError, match="'later' not allowed"):
        fit(folder, made)


@pytest.mark.parametrize("folder", folders("kueue"))
@pytest.mark.parametrize("path", sorted(KUEUE.rglob("queues.yaml")), ids=lambda path: path.parent.name)
def test_queues_fit_the_crds_of_another_kueue(path: Path, folder: str) -> None:
    helm.validate(path.read_text(), folder)
    with pytest.raises(helm.HelmError, match="'specc' not allowed"):
        helm.validate(path.read_text().replace("\nspec:", "\nspecc:", 1), folder)


# Kinds whose fields doctor and why look for (crds.py), with a schema of each version: its folder and trainjob.version
LOOKED_FOR = [
    *(("mpijobs.kubeflow.org", folder, "mpijob-kubeflow-v2beta1", ()) for folder in ("", *folders("mpi-operator"))),
    ("pytorchjobs.kubeflow.org", "", "pytorchjob-kubeflow-v1", ()),
    *(
        (kind, "" if version == NEWEST else f"trainer-{version}", name, tuple(map(int, version.split("."))))
        for version in VERSIONS
        for kind, name in (
            (trainjobs.TRAINJOBS, "trainjob-trainer-v1alpha1"),
            (trainjobs.RUNTIMES, "trainingruntime-trainer-v1alpha1"),
            (trainjobs.JOBSETS, "jobset-jobset-v1alpha2"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "folder", "name", "written"), LOOKED_FOR)
def test_doctor_and_why_take_the_crds_of_each_version(
    kind: str, folder: str, name: str, written: tuple[int, ...]
) -> None:
    schema = json.loads((helm.ROOT / "build" / "schemas" / folder / f"{name}.json").read_text())
    version = {"name": crds.NEEDED[kind][0], "served": True, "schema": {"openAPIV3Schema": schema}}
    assert crds.fit({"metadata": {"name": kind}, "spec": {"versions": [version]}}, written) is None


def test_trainer_2_1_does_not_fit_a_run_that_is_not_written_for_it() -> None:
    schema = json.loads((helm.ROOT / "build/schemas/trainer-2.1/trainjob-trainer-v1alpha1.json").read_text())
    version = {"name": "v1alpha1", "served": True, "schema": {"openAPIV3Schema": schema}}
    misfit = crds.fit({"metadata": {"name": trainjobs.TRAINJOBS}, "spec": {"versions": [version]}})
    assert misfit is not None
    assert "does not know spec.activeDeadlineSeconds, spec.runtimePatches" in misfit.cause
