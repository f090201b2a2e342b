"""Kubeflow Trainer 2.1 and 2.2, each with the JobSet that it wants, then the newest: one run moves through all.

Between two of them a PyTorchJob or an MPIJob trains, and no TrainJob is there. On each, Horovod runs under mpirun.
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
VERSIONS = ("2.1", "2.2", "2.3")
WAY = (
    ("pytorchjob", ""),
    ("trainjob", "2.1"),
    ("mpijob", ""),
    ("trainjob", "2.2"),
    ("pytorchjob", ""),
    ("trainjob", "2.3"),
)
MPI = (
    "--set", "global.training.operator=trainjob,global.training.processesPerNode=1",
    "--set", "global.training.config.strategy=horovod",
    *(part for key, value in (SMALL | {"max_steps": 12}).items()
      for part in ("--set", f"global.training.config.{key}={value}")),
)  # fmt: skip


def put(version: str) -> None:
    """Put a version of Kubeflow Trainer, with its JobSet, in the place of the one that is there."""
    named = "" if version == VERSIONS[-1] else version
    cluster.run("env", f"TRAINYARD_TRAINER={named}", "hack/cluster/extra", "trainer")


def running() -> tuple[str, str]:
    """Return the versions of Trainer and JobSet whose controllers run."""
    tags = []
    for space, name in (("kubeflow-system", "kubeflow-trainer"), ("jobset-system", "jobset")):
        (one,) = [d for d in get("deployments", space) if d["metadata"]["name"] == f"{name}-controller-manager"]
        tags.append(one["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":v")[2].rpartition("-")[0])
    return tags[0], tags[1]


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
    ran: dict[str, tuple[str, str]] = field(default_factory=dict)
    mpi: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(namespace, image, install, archive, tmp_path_factory) -> Story:
    """Move the run along its way, and train under mpirun on each version; the newest Trainer is back afterwards."""
    found = Story(moves.Moves(namespace, Gate(namespace, image, FIRST)), tmp_path_factory.mktemp("versions"))
    try:
        for operator, version in WAY:
            if version:
                put(version)
                found.ran[version] = running()
            moves.move(found.seen, install, operator, version)
        moves.finish(found.seen, found.folder)
        kubectl("delete", "trainjobs", "--all", "-n", namespace)
        for version in reversed(VERSIONS):
            put(version)
            found.mpi[version] = train_under_mpirun(namespace, install, version)
    finally:
        put(VERSIONS[-1])
    return found


def test_each_version_ran_with_the_jobset_that_it_wants(story):
    assert story.ran == {"2.1": ("2.1.0", "0.10.1"), "2.2": ("2.2.1", "0.11.1"), "2.3": ("2.3.0", "0.12.0")}


def test_a_run_moves_through_all_versions_and_loses_no_step(story):
    assert story.seen.kinds == [f"{job}s" for job, _ in WAY]
    moves.lost_nothing(story.folder, len(WAY) - 1)


def test_the_weights_are_those_of_a_run_that_stayed(story, calm):
    moves.same_weights(story.folder, calm)


@pytest.mark.parametrize("version", VERSIONS)
def test_horovod_trains_under_mpirun(story, version):
    assert re.search(r"trainjob/\S+ +Complete", story.mpi[version]), story.mpi[version]
