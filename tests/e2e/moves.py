"""A run that `helm upgrade` moves between operators while it trains, held at a step before each move."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e import cluster
from tests.e2e.cluster import get, lines, until, why
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import CONFIG, HELM, STEPS, bit_equal, weights

RELEASE = "moved"
LEG = 9  # steps on each operator
LATE = 2  # seconds after which a run that is to stop may make one step more; when the next one begins, it is too late


@dataclass
class Moves:
    """What was seen of the run on its way."""

    namespace: str
    gate: Gate
    kinds: list[str] = field(default_factory=list)  # of the jobs that were there on each leg

    def __str__(self) -> str:
        return why(RELEASE, self.namespace)

    def events(self, kind: str) -> list[dict]:
        """Read the events of one kind from the run's metrics."""
        text = self.gate.read(f"runs/{RELEASE}/metrics.jsonl")
        whole = [line for line in text.split("\n")[:-1] if line]  # the last one may be half written
        return [event for event in map(json.loads, whole) if event["event"] == kind]


def move(seen: Moves, install, operator: str, version: str = "") -> None:
    """Upgrade the release to an operator while the run trains; wait until the steps of this leg are done.

    The version is that of Kubeflow Trainer; empty, the chart's default.
    """
    space, legs = seen.namespace, len(seen.kinds)
    settings = f"global.training.operator={operator},mpijob.runPolicy.suspend=false"  # the demo's waits for a person
    install(RELEASE, space, *HELM, "--set", settings, "--set-string", f"trainjob.version={version}")
    if legs == 0:
        seen.gate.stand(f"{RELEASE}-results")
    else:  # a stopped run ends the step in which it is held, and may vote on the stop in the next
        until(lambda: str(seen), lambda: any("deletionTimestamp" in pod["metadata"] for pod in get("pods", space)))
        seen.gate.allow(seen.gate.steps + 2)
        let_stop(seen)
    until(lambda: str(seen), lambda: len(seen.events("resume")) == legs)
    kinds = ("pytorchjobs", "mpijobs", "trainjobs")
    jobs = {kind: get(kind, space, f"app.kubernetes.io/instance={RELEASE}") for kind in kinds}
    seen.kinds += [kind for kind in kinds if any("deletionTimestamp" not in job["metadata"] for job in jobs[kind])]
    seen.gate.allow(seen.gate.steps + LEG)
    # the last steps of a held run are not written before the next one
    until(lambda: str(seen), lambda: [e for e in seen.events("train") if e["step"] >= seen.gate.steps - 3])


def let_stop(seen: Moves) -> None:
    """Let the old run step until it has stopped: a busy kubelet may tell it after all steps that it was allowed."""
    allowed = time.monotonic()

    def stopped() -> bool:
        nonlocal allowed
        if time.monotonic() - allowed > LATE:
            seen.gate.creep()
            allowed = time.monotonic()
        deleted = [pod for pod in get("pods", seen.namespace) if "deletionTimestamp" in pod["metadata"]]
        states = [one["state"] for pod in deleted for one in pod["status"].get("containerStatuses", [])]
        return not any("running" in state for state in states)

    until(lambda: str(seen), stopped)


def finish(seen: Moves, folder: Path) -> None:
    """Let the run end, and fetch its directory (results) and its dataset (data)."""
    seen.gate.open()
    cluster.follow(RELEASE, seen.namespace)
    for source, claim in ((f"runs/{RELEASE}", "results"), ("fashion", "data")):
        cluster.run("trainyard", "fetch", RELEASE, source, folder / claim, "-n", seen.namespace, "--claim", claim)


def lost_nothing(folder: Path, moves: int) -> None:
    """Check that each move resumed at the step in flight, and that each step was made once."""
    metrics = lines(folder / "results" / "metrics.jsonl")
    resumed = [(event["step"], event["lost_steps"]) for event in metrics if event["event"] == "resume"]
    assert [lost for _, lost in resumed] == [0] * moves, resumed
    assert [step for step, _ in resumed] == sorted({step for step, _ in resumed}), "each leg has steps of its own"
    assert [event["step"] for event in metrics if event["event"] == "train"] == list(range(1, STEPS + 1))


def same_weights(folder: Path, calm) -> None:
    """Check that the weights are those of a run that stayed."""
    expected, found = weights(calm(folder / "data", CONFIG, 2)), weights(folder / "results")
    assert bit_equal(expected, found)
