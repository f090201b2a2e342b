"""A run started as a PyTorchJob, killed, and continued as a TrainJob by one key; a killed rank; recreated pods.

examples/demo.yaml has a PyTorchJob and an MPIJob: `global.training.operator` alone says which job trains.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, lines, log, until, why
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import CONFIG, FIRST, HELM, STEPS, bit_equal, weights

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(4), pytest.mark.takes(110)]
RELEASE = "cross"
EVERY = 5  # steps between checkpoints
KEPT = ["--set", f"global.training.config.checkpoint.every_steps={EVERY}"]
RESTARTS = (
    "--set", "global.training.env[8].name=PET_MAX_RESTARTS", "--set-string", "global.training.env[8].value=3",
)  # fmt: skip
LEADERS = {
    "pytorchjob": ("training.kubeflow.org/replica-type=master", "pytorch"),
    "trainjob": ("app.kubernetes.io/name=trainjob,batch.kubernetes.io/job-completion-index=0", "node"),
}
# Ends each rank at once, as a node that fails does
KILL = """
import os, pathlib, signal
for path in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if b"trainers.ddp" in (path / "cmdline").read_bytes().split(b"\\0")[2:4] and path.name != "1":
            os.kill(int(path.name), signal.SIGKILL)
    except OSError:  # it has ended
        continue
"""


@dataclass
class Story:
    """What was seen of the run on its way."""

    namespace: str
    folder: Path
    gate: Gate
    killed_at: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    statuses: list[dict] = field(default_factory=list)
    in_place: tuple[dict[str, str], dict[str, str]] = ({}, {})
    before: set[str] = field(default_factory=set)
    after: set[str] = field(default_factory=set)
    finished: str = ""
    refused: str = ""
    failed: dict = field(default_factory=dict)
    failed_pods: list[dict] = field(default_factory=list)

    def __str__(self) -> str:
        return why(RELEASE, self.namespace)


def steps(namespace: str, job: str) -> tuple[int, int]:
    """Return the step that a job's newest first pod resumed from, and the last one it logs; -1 before it trains."""
    selector, container = LEADERS[job]
    pods = get("pods", namespace, f"app.kubernetes.io/instance={RELEASE},{selector}")
    if not pods:
        return -1, -1
    pod = max(pods, key=lambda p: p["metadata"]["creationTimestamp"])["metadata"]["name"]
    text = log(pod, namespace, container)
    resumed = [int(step) for step in re.findall(r"resumed at step (\d+)", text)]
    done = [int(step) for step in re.findall(r"step +(\d+)/", text)]
    return (resumed[-1] if resumed else 0), max(done, default=-1)


def resumes(namespace: str) -> int:
    """Return how often the TrainJob's rank 0 has resumed in its pod."""
    selector, container = LEADERS["trainjob"]
    (pod,) = get("pods", namespace, f"app.kubernetes.io/instance={RELEASE},{selector}")
    return log(pod["metadata"]["name"], namespace, container).count("resumed at step")


def pods_of(namespace: str) -> dict[str, str]:
    """Return the uids of the TrainJob's pods that are not being deleted, by name."""
    found = get("pods", namespace, f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/name=trainjob")
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in found if not p["metadata"].get("deletionTimestamp")}


def trainjob(namespace: str) -> dict:
    """Return the release's TrainJob."""
    (found,) = get("trainjobs", namespace, f"app.kubernetes.io/instance={RELEASE}")
    return found


def told(namespace: str) -> dict:
    """Return the progress that the trainers have reported."""
    return trainjob(namespace).get("status", {}).get("trainerStatus", {})


def cross(story: Story, install) -> None:
    """Train as a PyTorchJob, kill its ranks, and continue as a TrainJob."""
    space = story.namespace
    install(RELEASE, space, *HELM, *KEPT, "--set", "global.training.operator=pytorchjob")
    story.gate.stand(f"{RELEASE}-results")
    until(lambda: str(story), lambda: steps(space, "pytorchjob")[1] > 2 * EVERY)
    story.killed_at = FIRST  # where the gate holds it
    pods = get("pods", space, "training.kubeflow.org/job-name")
    for pod in pods:
        kubectl("exec", pod["metadata"]["name"], "-n", space, "-c", "pytorch", "--", "python", "-c", KILL, check=False)
    install(RELEASE, space, *HELM, *KEPT, *RESTARTS, "--set", "global.training.operator=trainjob")
    kinds = ("pytorchjobs", "mpijobs", "trainjobs")
    story.kinds = {kind: len(get(kind, space, f"app.kubernetes.io/instance={RELEASE}")) for kind in kinds}
    until(lambda: str(story), lambda: steps(space, "trainjob")[1] >= story.killed_at)


def kill(story: Story) -> None:
    """Kill a rank of the TrainJob's second pod, and wait until the run has resumed and made all steps that it may."""
    space = story.namespace
    before, seen = pods_of(space), resumes(space)
    second = next(name for name in before if "-node-0-1-" in name)
    kubectl("exec", second, "-n", space, "-c", "node", "--", "python", "-c", KILL)
    story.gate.allow(story.gate.steps + 1)  # the other rank notices at its next step
    until(lambda: str(story), lambda: resumes(space) > seen and steps(space, "trainjob")[1] >= story.gate.steps)
    story.in_place = before, pods_of(space)


def disturb(story: Story) -> None:
    """Delete one of the TrainJob's pods, and follow it to its end."""
    space = story.namespace
    until(lambda: str(story), lambda: "progressPercentage" in told(space))
    story.statuses.append(told(space))
    pods = pods_of(space)
    story.before = set(pods.values())
    kubectl("delete", "pod", next(name for name in pods if "-node-0-1-" in name), "-n", space, "--wait=false")
    until(lambda: str(story), lambda: story.gate.creep() and len(set(pods_of(space).values()) - story.before) == 2)
    story.gate.open()
    story.after = set(pods_of(space).values())
    cluster.follow(RELEASE, space)
    story.statuses.append(told(space))
    story.finished = why(RELEASE, space)


def refuse(story: Story, install) -> None:
    """Set another model for the same run, which its checkpoints refuse."""
    space = story.namespace
    wrong = ("--set-string", "global.training.config.model.name=resnet34")  # Helm reads strings last, as HELM's are
    install(RELEASE, space, *HELM, *KEPT, "--set", "global.training.operator=trainjob", *wrong)

    def ended() -> bool:
        return any(c["type"] == "Failed" for c in trainjob(space).get("status", {}).get("conditions", []))

    until(lambda: str(story), ended)
    story.failed = trainjob(space)
    story.refused = why(RELEASE, space)
    story.failed_pods = get("pods", space, f"jobset.sigs.k8s.io/jobset-name={story.failed['metadata']['name']}")


@pytest.fixture(scope="module")
def story(namespace, image, install, tmp_path_factory, request) -> Story:
    """The run's way from one operator to the other, and what it left."""
    for needed in ("archive", "trainer_v2"):
        request.getfixturevalue(needed)
    found = Story(namespace, tmp_path_factory.mktemp("cross"), Gate(namespace, image, FIRST))
    cross(found, install)
    kill(found)
    disturb(found)
    cluster.run("trainyard", "fetch", RELEASE, f"runs/{RELEASE}", found.folder / "run", "-n", namespace)
    refuse(found, install)
    return found


def test_one_key_switches_the_operator_and_the_run_continues_in_its_directory(story):
    assert story.kinds == {"pytorchjobs": 0, "mpijobs": 0, "trainjobs": 1}
    metrics = lines(story.folder / "run" / "metrics.jsonl")
    resumed = [event["step"] for event in metrics if event["event"] == "resume"]
    assert resumed
    assert 0 < resumed[0] <= story.killed_at, "it resumed from a checkpoint of the PyTorchJob"
    steps = [event["step"] for event in metrics if event["event"] == "train"]
    assert steps == list(range(1, STEPS + 1))
    logs = {path.name for path in (story.folder / "run" / "logs").iterdir()}
    assert {"master-0.log", "node-0-0.log", "node-0-1.log"} <= logs


def test_a_killed_rank_is_started_again_in_its_pod(story):
    before, after = story.in_place
    assert len(before) == 2
    assert before == after


def test_a_deleted_pod_recreates_all_pods_which_resume_from_the_step_in_flight(story):
    assert len(story.after) == 2
    assert not story.after & story.before
    metrics = lines(story.folder / "run" / "metrics.jsonl")
    last = [event for event in metrics if event["event"] == "resume"][-1]
    assert last["lost_steps"] == 0
    assert last["step"] > story.killed_at


def test_the_weights_are_those_of_an_undisturbed_run(story, calm, tmp_path):
    cluster.run("trainyard", "fetch", RELEASE, "fashion", tmp_path / "data", "-n", story.namespace, "--claim", "data")
    expected, found = weights(calm(tmp_path / "data", CONFIG, 2)), weights(story.folder / "run")
    assert bit_equal(expected, found)


def test_the_status_shows_progress_time_left_and_metrics(story):
    before, after = story.statuses
    assert 0 < before["progressPercentage"] < 100
    assert (after["progressPercentage"], after["estimatedRemainingSeconds"]) == (100, 0)
    told = {one["name"]: float(one["value"]) for one in after["metrics"]}
    summary = json.loads((story.folder / "run" / "summary.json").read_text())
    assert told["top1"] == pytest.approx(summary["top1"], rel=1e-4)
    assert told["step"] == STEPS
    assert told["images_per_second"] > 0
    assert re.search(r"trainjob/\S+ +Complete", story.finished)
    assert "remedy" not in story.finished, story.finished


def test_an_exit_code_that_no_retry_cures_fails_the_job_at_once_and_is_named(story):
    (failed,) = [c for c in story.failed["status"]["conditions"] if c["type"] == "Failed"]
    assert "FailJobSet" in failed["reason"]
    (jobset,) = [one for one in get("jobsets", story.namespace) if one["metadata"]["name"] == failed_name(story)]
    assert jobset["status"]["restarts"] == 0, story.refused
    codes = [
        status["state"]["terminated"]["exitCode"]
        for pod in story.failed_pods
        for status in pod["status"].get("containerStatuses", [])  # none where the node had not begun with it
        if status["state"].get("terminated")
    ]
    assert 2 in codes, story.refused
    assert re.search(r"because: .*resnet34.*\n *remedy:", story.refused)


def failed_name(story: Story) -> str:
    return story.failed["metadata"]["name"]
