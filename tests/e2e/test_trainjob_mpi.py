"""Horovod and another command under mpirun by Kubeflow Trainer's MPI policy, in a namespace that enforces `restricted`.

A worker is deleted midway: all pods are recreated, and the run continues.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import documents
from tests.e2e import cluster
from tests.e2e.cluster import get, lines, log, until, why
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import FIRST, HELM, STEPS

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(2), pytest.mark.takes(110)]
RELEASE = "lab"
SETTINGS = (
    *HELM,
    "--set", "global.training.operator=trainjob,global.training.config.strategy=horovod",
    "--set", "trainjob.runtime.waitForDataset=false",
)  # fmt: skip
LAUNCHER = "jobset.sigs.k8s.io/replicatedjob-name=launcher"
COMMAND = documents.text("operators.md", "metadata: {name: ranks}")


@dataclass
class Story:
    """What the run left, and what was seen of its pods."""

    folder: Path
    before: set[str]
    after: set[str]
    launcher: str
    finished: str
    ranks: str


def of(job: str) -> str:
    """Return the selector of a TrainJob's pods."""
    return f"jobset.sigs.k8s.io/jobset-name={job}"


def pods_of(namespace: str, job: str) -> dict[str, str]:
    """Return the uids of a TrainJob's pods that are not being deleted, by name."""
    found = get("pods", namespace, of(job))
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in found if not p["metadata"].get("deletionTimestamp")}


def launcher_log(namespace: str, job: str) -> str:
    """Return what a TrainJob's newest launcher has printed; nothing before it starts."""
    pods = sorted(get("pods", namespace, f"{of(job)},{LAUNCHER}"), key=lambda p: p["metadata"]["creationTimestamp"])
    return log(pods[-1]["metadata"]["name"], namespace, "node") if pods else ""


def run_ranks(namespace: str) -> str:
    """Run the page's own TrainJob, and return what its ranks print."""
    command = COMMAND.replace("-n training", f"-n {namespace}")
    cluster.run("bash", "-euc", command)

    def ended() -> bool:
        (job,) = [one for one in get("trainjobs", namespace) if one["metadata"]["name"] == "ranks"]
        return bool({c["type"] for c in job.get("status", {}).get("conditions", [])} & {"Complete", "Failed"})

    until(lambda: why(RELEASE, namespace), ended)
    return launcher_log(namespace, "ranks")


@pytest.fixture(scope="module")
def story(namespace, image, install, tmp_path_factory, request) -> Story:
    """Train, delete a worker, follow to the end; then run another command."""
    for needed in ("archive", "trainer_v2"):
        request.getfixturevalue(needed)
    gate = Gate(namespace, image, FIRST)
    install(RELEASE, namespace, *SETTINGS)
    gate.stand(f"{RELEASE}-results")
    (job,) = [one["metadata"]["name"] for one in get("trainjobs", namespace)]
    until(lambda: why(RELEASE, namespace), lambda: re.search(r"step +4/", launcher_log(namespace, job)))
    pods = pods_of(namespace, job)
    worker = next(name for name in pods if "-node-0-1-" in name)
    cluster.kubectl("delete", "pod", worker, "-n", namespace, "--wait=false")
    before = set(pods.values())
    until(
        lambda: why(RELEASE, namespace),
        lambda: gate.creep() and len(set(pods_of(namespace, job).values()) - before) == 3,
    )
    after = set(pods_of(namespace, job).values())
    gate.open()
    cluster.follow(RELEASE, namespace)
    said, finished = launcher_log(namespace, job), why(RELEASE, namespace)
    folder = tmp_path_factory.mktemp("mpi")
    cluster.run("trainyard", "fetch", RELEASE, f"runs/{RELEASE}", folder / "run", "-n", namespace)
    return Story(folder, before, after, said, finished, run_ranks(namespace))


@pytest.mark.shows("trains with Horovod", "Kubeflow Trainer", "JobSet")
def test_horovod_trains_on_two_nodes_without_mpi_operator(story: Story, namespace: str):
    assert not get("mpijobs", namespace)
    assert "horovod on 2 processes" in story.launcher
    summary = json.loads((story.folder / "run" / "summary.json").read_text())
    assert (summary["status"], summary["world_size"]) == ("finished", 2)
    assert re.search(r"trainjob/\S+ +Complete", story.finished)
    logs = {path.name for path in (story.folder / "run" / "logs").iterdir()}
    assert {"launcher.log", "node-0-0.log", "node-0-1.log"} <= logs


def test_a_deleted_worker_recreates_all_pods_which_resume_from_the_step_in_flight(story: Story):
    assert not story.before & story.after
    metrics = lines(story.folder / "run" / "metrics.jsonl")
    (resumed,) = [event for event in metrics if event["event"] == "resume"]
    assert resumed["lost_steps"] == 0
    assert [event["step"] for event in metrics if event["event"] == "train"] == list(range(1, STEPS + 1))


def test_another_command_runs_under_mpirun_through_the_runtime(story: Story):
    # both ranks write at once, and Python without a buffer writes word by word
    assert sorted("".join(story.ranks.split())) == sorted("rank0rank1"), story.ranks
