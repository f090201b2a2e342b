"""Kubeflow Trainer 2.1 and 2.2, each with the JobSet that it asks for, and mpi-operator 0.7: one run moves through all.

When an operator is replaced, the run is another one's, and no job of the first is there. On each Trainer, Horovod runs
under mpirun.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e import cluster, moves
from tests.e2e.cluster import get, kubectl, until, why
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import FIRST, SMALL

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.alone, pytest.mark.ranks(4), pytest.mark.takes(600)]
TRAINERS = ("2.1", "2.2", "2.3")
WAY = (
    ("pytorchjob", ""), ("trainjob", "2.1"), ("mpijob", "0.7"), ("trainjob", "2.2"), ("mpijob", "0.8"),
    ("trainjob", "2.3"),
)  # fmt: skip
ADD_ONS = {"trainjob": "trainer", "mpijob": "mpi-operator"}
NEWEST = {"trainer": "2.3", "mpi-operator": "0.8"}
CONTROLLERS = {
    "trainer": ("kubeflow-system/kubeflow-trainer-controller-manager", "jobset-system/jobset-controller-manager"),
    "mpi-operator": ("mpi-operator/mpi-operator",),
}
MPI = (
    "--set", "global.training.operator=trainjob,global.training.processesPerNode=1",
    "--set", "global.training.config.strategy=horovod",
    *(part for key, value in (SMALL | {"max_steps": 12}).items()
      for part in ("--set", f"global.training.config.{key}={value}")),
)  # fmt: skip


def put(add_on: str, version: str) -> tuple[str, ...]:
    """Put a version of an operator in the place of the one that is there; return the versions of its controllers."""
    key = f"TRAINYARD_{add_on.upper().replace('-', '_')}"
    named = "" if version == NEWEST[add_on] else version
    cluster.run("env", f"{key}={named}", "hack/cluster/extra", add_on)
    images = []
    for space, name in (one.split("/") for one in CONTROLLERS[add_on]):
        (found,) = [one for one in get("deployments", space) if one["metadata"]["name"] == name]
        images.append(found["spec"]["template"]["spec"]["containers"][0]["image"])
    return tuple(image.rpartition(":v")[2].rpartition("-")[0] for image in images)


def train_under_mpirun(namespace: str, install, version: str) -> str:
    """Train with Horovod as a TrainJob; return what `trainyard why` says in the end."""
    release = f"mpi-{version.replace('.', '-')}"
    claims = ",".join(
        f"global.storage.{one}.existingClaim={moves.RELEASE}-{one},global.storage.{one}.size="
        for one in ("data", "results")
    )
    own = ("--set", f"dataset.enabled=false,{claims}", "--set-string", f"trainjob.version={version}")
    install(release, namespace, *MPI, *own)
    until(lambda: why(release, namespace), lambda: re.search(r"trainjob/.* (Complete|Failed)", why(release, namespace)))
    said = why(release, namespace)
    cluster.helm("uninstall", release, "-n", namespace)
    return said


@dataclass
class Story:
    """The run's way, its directory, and by version which programs ran and how Horovod's TrainJob ended."""

    seen: moves.Moves
    folder: Path
    ran: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mpi: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(namespace, image, install, archive, tmp_path_factory) -> Story:
    """Move the run along its way, and train under mpirun on each Trainer; the newest are back afterwards."""
    found = Story(moves.Moves(namespace, Gate(namespace, image, FIRST)), tmp_path_factory.mktemp("versions"))
    try:
        for operator, version in WAY:
            if operator in ADD_ONS:
                found.ran[f"{operator} {version}"] = put(ADD_ONS[operator], version)
            moves.move(found.seen, install, operator, version if operator == "trainjob" else "")
        moves.finish(found.seen, found.folder)
        kubectl("delete", "trainjobs", "--all", "-n", namespace)
        for version in reversed(TRAINERS):
            put("trainer", version)
            found.mpi[version] = train_under_mpirun(namespace, install, version)
    finally:
        for add_on, version in NEWEST.items():
            put(add_on, version)
    return found


def test_each_version_ran_with_what_it_asks_for(story):
    assert story.ran == {
        "trainjob 2.1": ("2.1.0", "0.10.1"),
        "trainjob 2.2": ("2.2.1", "0.11.1"),
        "trainjob 2.3": ("2.3.0", "0.12.0"),
        "mpijob 0.7": ("0.7.0",),
        "mpijob 0.8": ("0.8.2",),
    }


def test_a_run_moves_through_all_versions_and_loses_no_step(story):
    assert story.seen.kinds == [f"{job}s" for job, _ in WAY]
    moves.lost_nothing(story.folder, len(WAY) - 1)


def test_the_weights_are_those_of_a_run_that_stayed(story, calm):
    moves.same_weights(story.folder, calm)


@pytest.mark.parametrize("version", TRAINERS)
def test_horovod_trains_under_mpirun(story, version):
    assert re.search(r"trainjob/\S+ +Complete", story.mpi[version]), story.mpi[version]
