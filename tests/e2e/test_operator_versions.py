"""Kubeflow Trainer 2.1 and 2.2, each with the JobSet that it asks for, and mpi-operator 0.7: one run moves through all.

When an operator is replaced, the run is another one's, and no job of the first is there. On each Trainer, Horovod runs
under mpirun.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e import cluster, exchange, moves
from tests.e2e.cluster import kubectl, lines, until, why
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import FIRST, SMALL, STEPS

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.alone, pytest.mark.ranks(4), pytest.mark.takes(600)]
TRAINERS = ("2.1", "2.2", "2.3")
WAY = (
    ("pytorchjob", ""), ("trainjob", "2.1"), ("mpijob", "0.7"), ("trainjob", "2.2"), ("mpijob", "0.8"),
    ("trainjob", "2.3"),
)  # fmt: skip
ADD_ONS = {"trainjob": "trainer", "mpijob": "mpi-operator"}
MPI = (
    "--set", "global.training.operator=trainjob,global.training.processesPerNode=1",
    "--set", "global.training.config.strategy=horovod",
    *(part for key, value in (SMALL | {"max_steps": 12}).items()
      for part in ("--set", f"global.training.config.{key}={value}")),
)  # fmt: skip


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
    ran: dict[str, exchange.Versions] = field(default_factory=dict)
    mpi: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(namespace, image, install, tmp_path_factory, request) -> Story:
    """Move the run along its way, and train under mpirun on each Trainer; the newest are back afterwards."""
    request.getfixturevalue("archive")
    found = Story(moves.Moves(namespace, Gate(namespace, image, FIRST)), tmp_path_factory.mktemp("versions"))
    try:
        for operator, version in WAY:
            add_on = ADD_ONS.get(operator)
            found.ran[f"{operator} {version}".strip()] = exchange.put(add_on, version) if add_on else {}
            moves.move(found.seen, install, operator, version if operator == "trainjob" else "")
        moves.finish(found.seen, found.folder)
        kubectl("delete", "trainjobs", "--all", "-n", namespace)
        for version in reversed(TRAINERS):
            exchange.put("trainer", version)
            found.mpi[version] = train_under_mpirun(namespace, install, version)
    finally:
        for add_on, version in exchange.NEWEST.items():
            exchange.put(add_on, version)
    return found


def test_each_version_ran_with_what_it_asks_for(story):
    assert {leg: versions for leg, versions in story.ran.items() if leg != "pytorchjob"} == {
        "trainjob 2.1": {"Kubeflow Trainer": "2.1.0", "JobSet": "0.10.1"},
        "trainjob 2.2": {"Kubeflow Trainer": "2.2.1", "JobSet": "0.11.1"},
        "trainjob 2.3": {"Kubeflow Trainer": "2.3.0", "JobSet": "0.12.0"},
        "mpijob 0.7": {"mpi-operator": "0.7.0"},
        "mpijob 0.8": {"mpi-operator": "0.8.2"},
    }


shows_moved = pytest.mark.shows("takes over a run", "mpi-operator", "Kubeflow Trainer", "JobSet")


@shows_moved
def test_a_run_moves_through_all_versions_and_loses_no_step(story, record_property):
    assert story.seen.kinds == [f"{job}s" for job, _ in WAY]
    moves.lost_nothing(story.folder, len(WAY) - 1)
    events = lines(story.folder / "results" / "metrics.jsonl")
    starts = [0, *(event["step"] for event in events if event["event"] == "resume")]
    for (leg, versions), first, last in zip(story.ran.items(), starts, [*starts[1:], STEPS], strict=True):
        row = f"{leg:14} {', '.join(f'{name} {one}' for name, one in versions.items()):40} {first + 1} to {last}"
        record_property("table", ("moved while it trained, steps", row))


@shows_moved
def test_the_weights_are_those_of_a_run_that_stayed(story, calm):
    moves.same_weights(story.folder, calm)


@pytest.mark.shows("trains with Horovod", "Kubeflow Trainer", "JobSet")
@pytest.mark.parametrize("version", TRAINERS)
def test_horovod_trains_under_mpirun(story, version):
    assert re.search(r"trainjob/\S+ +Complete", story.mpi[version]), story.mpi[version]
