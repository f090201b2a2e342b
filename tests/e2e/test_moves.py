"""One run on three operators: each `helm upgrade` moves it in the middle, and no step is made twice."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, lines, until, why
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import CONFIG, FIRST, HELM, STEPS, weights

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(4), pytest.mark.takes(120)]
RELEASE = "moved"
WAY = ("pytorchjob", "trainjob", "mpijob", "trainjob")
LEG = 9  # steps on each operator


@dataclass
class Moves:
    """What was seen of the run on its way."""

    namespace: str
    gate: Gate
    kinds: list[str] = field(default_factory=list)  # of the jobs that were there on each leg

    def __str__(self) -> str:
        return why(RELEASE, self.namespace)

    def events(self, kind: str) -> list[dict]:
        """Read the events of one kind from the run's metrics, in a pod that has its claim."""
        path = f"/results/runs/{RELEASE}/metrics.jsonl"
        text = kubectl("exec", "gate", "-n", self.namespace, "--", "sh", "-c", f"cat {path} 2>/dev/null || true")
        whole = [line for line in text.split("\n")[:-1] if line]  # the last one may be half written
        return [event for event in map(json.loads, whole) if event["event"] == kind]


def move(seen: Moves, install, leg: int) -> None:
    """Upgrade the release to the operator of a leg while the run trains; wait until that leg's steps are done."""
    space = seen.namespace
    settings = f"global.training.operator={WAY[leg]},mpijob.runPolicy.suspend=false"  # the demo's waits for a person
    install(RELEASE, space, *HELM, "--set", settings)
    if leg == 0:
        seen.gate.stand(f"{RELEASE}-results")
    else:  # a stopped run ends the step in which it is held, and may vote on the stop in the next
        until(lambda: str(seen), lambda: any("deletionTimestamp" in pod["metadata"] for pod in get("pods", space)))
        seen.gate.allow(seen.gate.steps + 2)
    until(lambda: str(seen), lambda: len(seen.events("resume")) == leg)
    kinds = ("pytorchjobs", "mpijobs", "trainjobs")
    seen.kinds += [kind for kind in kinds if get(kind, space, f"app.kubernetes.io/instance={RELEASE}")]
    seen.gate.allow(seen.gate.steps + LEG)
    # the last steps of a held run are not written before the next one
    until(lambda: str(seen), lambda: [e for e in seen.events("train") if e["step"] >= seen.gate.steps - 3])


@pytest.fixture(scope="module")
def run(namespace, image, install, tmp_path_factory, request) -> tuple[Moves, Path]:
    """The run's way, and its directory."""
    for needed in ("archive", "trainer_v2"):
        request.getfixturevalue(needed)
    seen, folder = Moves(namespace, Gate(namespace, image, FIRST)), tmp_path_factory.mktemp("moves")
    for leg in range(len(WAY)):
        move(seen, install, leg)
    seen.gate.open()
    cluster.follow(RELEASE, namespace)
    for source, claim in ((f"runs/{RELEASE}", "results"), ("fashion", "data")):
        cluster.run("trainyard", "fetch", RELEASE, source, folder / claim, "-n", namespace, "--claim", claim)
    return seen, folder


def test_each_upgrade_moves_the_run_and_no_step_is_lost(run):
    seen, folder = run
    assert seen.kinds == [f"{job}s" for job in WAY]
    metrics = lines(folder / "results" / "metrics.jsonl")
    resumed = [(event["step"], event["lost_steps"]) for event in metrics if event["event"] == "resume"]
    assert [lost for _, lost in resumed] == [0] * (len(WAY) - 1)
    assert [step for step, _ in resumed] == sorted({step for step, _ in resumed}), "each leg has steps of its own"
    assert [event["step"] for event in metrics if event["event"] == "train"] == list(range(1, STEPS + 1))


def test_the_weights_are_those_of_a_run_that_stayed(run, calm):
    _, folder = run
    expected, found = weights(calm(folder / "data", CONFIG, 2)), weights(folder / "results")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
