"""A release of 0.1.0's chart is upgraded in the middle of its run: the run is not disturbed, or resumes bit by bit.

stored/trainyard-0.1.0.tgz is that version's chart as `helm package` packs it. Its images are today's: they have the
names by which its jobs call the trainers.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e import cluster
from tests.e2e.cluster import get, log, until, why
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import CONFIG, FIRST, HELM, STEPS, bit_equal, weights

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(2), pytest.mark.takes(60)]
OLD = Path(__file__).parent / "stored" / "trainyard-0.1.0.tgz"
RELEASE = "old"
RUN = f"{RELEASE}-pytorchjob"  # as 0.1.0 named the run of a job that trains alone
EVERY = 5  # steps between checkpoints
VALUES = [
    "--set", "mpijob.enabled=false", *HELM, "--set", f"global.training.config.checkpoint.every_steps={EVERY}",
]  # fmt: skip
NOW = ["--set", f"global.training.name={RUN}"]  # what docs/chart.md says to set
CHANGED = ["--set", "global.training.resources.limits.memory=3Gi"]


@dataclass
class Story:
    """The training job and its pods at each stage, as uids by name, and the finished run's folder."""

    run: Path
    jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: dict[str, dict[str, str]] = field(default_factory=dict)
    charts: dict[str, str] = field(default_factory=dict)


def uids(kind: str, namespace: str, selector: str) -> dict[str, str]:
    """Return the uids of the objects that are not being deleted, by name."""
    found = get(kind, namespace, selector)
    return {
        one["metadata"]["name"]: one["metadata"]["uid"] for one in found if "deletionTimestamp" not in one["metadata"]
    }


def console(namespace: str) -> str:
    """Return the log of the newest first pod; nothing before it runs."""
    pods = get("pods", namespace, f"app.kubernetes.io/instance={RELEASE},training.kubeflow.org/replica-type=master")
    newest = max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)
    return log(newest["metadata"]["name"], namespace, "pytorch") if newest else ""


def step(namespace: str) -> int:
    """Return the newest step that the log tells of."""
    return max((int(one) for one in re.findall(r"step +(\d+)/", console(namespace))), default=0)


@pytest.fixture(scope="module")
def story(namespace, archive, image, tmp_path_factory) -> Story:
    """The release installed by 0.1.0's chart, upgraded alone, upgraded with a change, and followed to its end."""
    found, gate = Story(tmp_path_factory.mktemp("old") / "run"), Gate(namespace, image, FIRST)
    images = ["--set", f"global.image.registry={image['registry']},global.image.tag={image['tag']}"]

    def upgrade(stage: str, chart: Path | str, *settings: str) -> None:
        command = ("upgrade", "--install", RELEASE, chart, "-n", namespace, "-f", "examples/demo.yaml")
        cluster.helm(*command, *images, "--set", "dataset.resources.requests.cpu=100m", *VALUES, *settings)
        look(stage)

    def look(stage: str) -> None:
        found.jobs[stage] = uids("pytorchjobs", namespace, f"app.kubernetes.io/instance={RELEASE}")
        found.pods[stage] = uids(
            "pods", namespace, f"app.kubernetes.io/instance={RELEASE},training.kubeflow.org/job-name"
        )

    upgrade("installed", OLD)
    gate.stand(f"{RELEASE}-results")
    until(lambda: why(RELEASE, namespace), lambda: step(namespace) >= FIRST)
    look("held")
    upgrade("upgraded", "charts/trainyard", *NOW)
    gate.allow(FIRST + 2)
    until(lambda: why(RELEASE, namespace), lambda: step(namespace) >= FIRST + 2)
    look("one step on")
    with ThreadPoolExecutor(1) as beside:  # Helm deletes the old job before it ends; the old run saves at a step's end
        upgraded = beside.submit(upgrade, "changed", "charts/trainyard", *NOW, *CHANGED)
        until(lambda: why(RELEASE, namespace), lambda: gate.creep() and upgraded.done())
        upgraded.result()
    until(lambda: why(RELEASE, namespace), lambda: gate.creep() and "resumed at step" in console(namespace))
    gate.open()
    cluster.follow(RELEASE, namespace)
    cluster.run("trainyard", "fetch", RELEASE, f"runs/{RUN}", found.run, "-n", namespace)
    return found


def test_an_upgrade_of_the_chart_alone_disturbs_nothing(story):
    assert len(story.jobs["held"]) == 1
    assert len(story.pods["held"]) == 2
    assert story.jobs["upgraded"] == story.jobs["one step on"] == story.jobs["held"]
    assert story.pods["upgraded"] == story.pods["one step on"] == story.pods["held"]


def test_a_job_that_the_new_chart_changes_resumes_what_the_old_one_began(story):
    assert not set(story.jobs["changed"]) & set(story.jobs["held"])
    metrics = cluster.lines(story.run / "metrics.jsonl")
    resumed = [event["step"] for event in metrics if event["event"] == "resume"]
    assert len(resumed) == 1
    assert FIRST + 2 <= resumed[0] < STEPS
    assert [event["step"] for event in metrics if event["event"] == "train"] == list(range(1, STEPS + 1))


def test_its_weights_are_those_of_an_undisturbed_run(story, namespace, calm, tmp_path):
    cluster.run("trainyard", "fetch", RELEASE, "fashion", tmp_path / "data", "-n", namespace, "--claim", "data")
    expected, found = weights(calm(tmp_path / "data", CONFIG, 2)), weights(story.run)
    assert expected.keys() == found.keys()
    assert bit_equal(expected, found)
