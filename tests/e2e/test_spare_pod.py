"""A PyTorchJob with a spare pod loses one: the run goes on without any other being started again.

The pod that replaces the deleted one may come before the spare one does: both wait for the same place. Where none
comes, the spare one takes it (tests/unit/pod/test_spare_pods.py).
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import moves
from tests.e2e.cluster import get, kubectl, until
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import FIRST, HELM

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(3), pytest.mark.takes(60)]
SETTINGS = (
    "--set", "global.training.operator=pytorchjob,pytorchjob.form=elastic",
    "--set", "pytorchjob.elastic.spares=1,pytorchjob.elastic.maxRestarts=100",
)  # fmt: skip
RANKS = """
import pathlib
for place in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        print("LOCAL_RANK" in (place / "environ").read_text() and "trainers.ddp" in (place / "cmdline").read_text())
    except OSError:
        pass
"""


def pods(namespace: str) -> dict[str, dict]:
    """Return the pods of the run by name."""
    found = get("pods", namespace, f"app.kubernetes.io/instance={moves.RELEASE},app.kubernetes.io/name=pytorchjob")
    return {pod["metadata"]["name"]: pod for pod in found}


def trains(namespace: str, pod: str) -> bool:
    """Whether a rank runs in a pod."""
    return "True" in kubectl("exec", pod, "-n", namespace, "-c", "pytorch", "--", "python", "-c", RANKS)


class Story(NamedTuple):
    """The run's directory, the pod that was deleted, the uids before and after, and the pods that train then."""

    folder: Path
    lost: str
    before: dict[str, str]
    after: dict[str, str]
    training: list[str]


@pytest.fixture(scope="module")
def story(namespace, archive, image, install, tmp_path_factory) -> Story:
    """Delete a pod that trains, other than the rendezvous' host, and let the run end."""
    seen, folder = moves.Moves(namespace, Gate(namespace, image, FIRST)), tmp_path_factory.mktemp("spare")
    install(moves.RELEASE, namespace, *HELM, *SETTINGS)
    seen.gate.stand(f"{moves.RELEASE}-results")
    until(lambda: str(seen), lambda: [event for event in seen.events("train") if event["step"] >= FIRST - 3])
    until(lambda: str(seen), lambda: [pod["status"]["phase"] for pod in pods(namespace).values()] == ["Running"] * 3)
    names = sorted(pods(namespace))
    (spare,) = [name for name in names if not trains(namespace, name)]
    lost = next(name for name in reversed(names) if name != spare)
    before = {name: pod["metadata"]["uid"] for name, pod in pods(namespace).items()}
    kubectl("delete", "pod", lost, "-n", namespace, "--wait=false")
    seen.gate.allow(seen.gate.steps + 2)
    moves.let_stop(seen)
    until(lambda: str(seen), lambda: seen.events("resume"))
    # the lost one may be there until its node has cleared it away
    there = {name: pod for name, pod in pods(namespace).items() if "deletionTimestamp" not in pod["metadata"]}
    after = {name: pod["metadata"]["uid"] for name, pod in there.items()}
    running = [name for name, pod in there.items() if pod["status"]["phase"] == "Running"]
    training = [name for name in running if trains(namespace, name)]
    moves.finish(seen, folder)
    return Story(folder, lost, before, after, training)


def test_as_many_pods_train_as_before_and_no_other_is_started_again(story):
    assert len(story.training) == 2
    assert {name for name, uid in story.after.items() if story.before[name] == uid} == set(story.before) - {story.lost}


def test_the_weights_are_those_of_a_run_that_nobody_disturbs(story, calm):
    moves.same_weights(story.folder, calm)


def test_no_pod_keeps_what_it_has_after_the_run(story, namespace):
    phases = lambda: {pod["status"]["phase"] for pod in pods(namespace).values()}  # noqa: E731
    until(lambda: f"pods that still run: {phases()}", lambda: not phases() & {"Pending", "Running"})
