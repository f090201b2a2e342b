"""Kueue itself: a job of any kind is admitted whole, is preempted by a higher priority, and resumes where it saved.

The files are those of docs/kueue.md. The three runs have the same settings, so one undisturbed run on this machine is
the reference for all: on processors its weights must be theirs, bit for bit.
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.e2e import cluster, gated, queueing
from tests.e2e.cluster import lines, until, why
from tests.e2e.queueing import CLAIMS, EXAMPLES, Watch, give, most_pods, pods, state, steps
from tests.e2e.saying import says
from tests.e2e.undisturbed import bit_equal, weights

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(6), pytest.mark.takes(110)]
# release -> its kind, and the container whose exit code tells
KINDS = {
    "run": ("pytorchjob", "pytorch"),
    "mpi": ("mpijob", "launcher"),
    "tj": ("trainjob", "node"),
}
NESTED = yaml.safe_load((EXAMPLES / "run.yaml").read_text())["global"]["training"]["config"]
FIRST = 8  # steps after which they are held
GATED = gated.settings(FIRST, env=1)
CONFIG = {
    f"{key}.{inner}" if inner else key: value
    for key, below in NESTED.items()
    for inner, value in (below if isinstance(below, dict) else {"": below}).items()
}
STEPS = CONFIG["max_steps"]
CONFIG |= gated.CONFIG
NEVER = "it asks for more than its queue ever has"


@dataclass
class Story:
    """The runs in their queue, what was seen of them, and the table of it."""

    namespace: str
    suffix: str
    install: Callable
    watch: Watch
    gate: gated.Gate
    short: dict[str, int] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def note(self, who: str, what: str) -> None:
        """Add a line to the table."""
        self.rows.append((time.strftime("%X"), who, what))

    def ended(self, release: str) -> str:
        """Return how a run's job has ended; nothing while it has not."""
        return state(self.namespace, KINDS[release][0], release)

    def codes(self, release: str) -> list[int]:
        """Return the exit codes of a run's pods."""
        return self.watch.codes(release, KINDS[release][1])


def prepare(archive: Path, folder: Path) -> Path:
    """Prepare the archive on this machine, as the cluster's Job does."""
    source = ("--set", "source.kind=path", "--set", f"source.path={archive}")
    cluster.run(sys.executable, "-m", "trainyard", "prepare", "build", *source, "--set", f"out={folder}/data")
    return folder / "data"


def wait_in_the_queue(story: Story) -> None:
    """Queue a run of each kind where the quota holds one pod; only the dataset's Job, which is one, is admitted."""
    give(f"small{story.suffix}", "100m")
    story.install("run", story.namespace, *GATED, values=EXAMPLES / "run.yaml")
    for release in ("mpi", "tj"):
        only = f"dataset.enabled=false,global.training.operator={KINDS[release][0]}"
        operator = ["--set", f"{only},mpijob.launcher.resources.requests.cpu=50m"]
        story.install(release, story.namespace, *CLAIMS, *operator, *GATED, values=EXAMPLES / "run.yaml")
    until("the dataset is prepared", lambda: state(story.namespace, "job", "run").startswith("Complete"))
    story.note("run", "its dataset's Job, of 100m, was admitted into a quota of 100m before it, and is complete")
    prepared = len(pods(story.namespace, "run"))
    story.short = most_pods(story.namespace, list(KINDS), 4)
    story.short["run"] -= prepared
    for release, (kind, _) in KINDS.items():
        story.said[release] = says(release, story.namespace, NEVER)
        story.note(release, f"{kind}: {story.short[release]} pods in 4 s, while the quota holds one pod but not all")


def give_way(story: Story) -> None:
    """Admit them, take their places for a run of higher priority, and wait until all have ended."""
    give(f"small{story.suffix}", "650m")
    story.gate.stand("run-results")
    until("all train", lambda: all(steps(story.namespace, release)[1] >= 3 for release in KINDS))
    story.note("all", "admitted into a quota of 650m, and train")
    other = ["--set", "global.scheduling.queue=other"]
    refused = story.install("run", story.namespace, *GATED, *other, check=False, values=EXAMPLES / "run.yaml")
    story.refused = refused.stderr
    # held like the others: its end would let one of them in again before Kueue has been heard about all
    urgent = f"global.scheduling.queuePriority=deadline{story.suffix},global.training.resources.requests.cpu=325m"
    long = ["--set", f"{urgent},global.training.config.max_steps=60"]
    story.install("deadline", story.namespace, *GATED, *long, values=EXAMPLES / "deadline.yaml")
    heard: set[str] = set()

    def given_way() -> bool:
        """Hear each as it gives way."""
        story.gate.creep()
        for release in KINDS.keys() - heard:
            text = why(release, story.namespace) if 143 in story.codes(release) else ""
            if "preempted, queued again" in text:
                story.said[release] += text
                heard.add(release)
        return heard == KINDS.keys()

    until(lambda: "\n".join(why(release, story.namespace) for release in KINDS), given_way)
    story.gate.open()
    until("deadline has run", lambda: state(story.namespace, "pytorchjob", "deadline"))
    story.note("deadline", f"of 650m and a higher priority: {state(story.namespace, 'pytorchjob', 'deadline')}")
    waits = lambda: "\n".join(why(release, story.namespace) for release in KINDS)  # noqa: E731
    until(waits, lambda: all(story.ended(release) for release in KINDS))


@pytest.fixture(scope="module")
def reference(calm, pictures, tmp_path_factory):
    """The same run, started on this machine beside the cluster's, and not interrupted; its result."""
    folder = tmp_path_factory.mktemp("calm")
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(lambda: calm(prepare(pictures, folder), CONFIG, 2))


@pytest.fixture(scope="module")
def story(namespace, image, install, request, reference):
    """Play it."""
    for needed in ("kueue", "trainer_v2", "archive"):
        request.getfixturevalue(needed)
    watch = Watch(namespace)
    try:
        with queueing.queues(namespace) as suffix:
            found = Story(namespace, suffix, install, watch, gated.Gate(namespace, image, FIRST))
            wait_in_the_queue(found)
            give_way(found)
            yield found
    finally:
        watch.stop()


@pytest.fixture(scope="module")
def runs(story, tmp_path_factory) -> dict[str, Path]:
    """The folders of the three runs, by release."""
    folder = tmp_path_factory.mktemp("kueue")
    cluster.run("trainyard", "fetch", "run", "runs", folder / "runs", "-n", story.namespace)
    return {release: folder / "runs" / release for release in KINDS}


def resumed(run: Path) -> dict:
    """Return how a run resumed the last time: on a busy machine it may have lost a peer before."""
    return [event for event in lines(run / "metrics.jsonl") if event["event"] == "resume"][-1]


@pytest.mark.parametrize("release", KINDS)
def test_no_pod_is_made_while_the_quota_does_not_hold_all(story, release):
    assert story.short[release] == 0
    assert f"{KINDS[release][0]}/{release}-" in story.said[release]
    assert NEVER in story.said[release]


@pytest.mark.parametrize("release", KINDS)
def test_a_preempted_run_saves_and_resumes_from_that_step(story, runs, release):
    assert {0, 143} <= set(story.codes(release)), "saved and stopped, then finished"
    assert resumed(runs[release])["lost_steps"] == 0
    assert 3 <= resumed(runs[release])["step"] < STEPS
    assert json.loads((runs[release] / "summary.json").read_text())["status"] == "finished"
    assert "preempted, queued again" in story.said[release]
    assert "(pytorchjob/deadline-" in story.said[release]


@pytest.mark.shows("admits, preempts and resumes runs of each operator", "Kueue")
def test_the_weights_are_those_of_an_undisturbed_run(story, runs, reference):
    calm = weights(reference.result())
    equal = {}
    for release, run in runs.items():
        mine = weights(run)
        equal[release] = bit_equal(calm, mine)
        again = resumed(run)
        where = f"resumed at step {again['step']} of {STEPS}, {again['lost_steps']} lost"
        codes = f"{KINDS[release][0]}: exit codes {story.codes(release)}"
        story.note(release, f"{codes}, {where}, weights bit-equal: {equal[release]}")
    text = "\n".join(" | ".join(row) for row in story.rows) + "\n"
    (cluster.ROOT / "build" / "kueue.txt").write_text(text)
    print(f"\n{text}")
    assert all(equal.values()), equal


def test_another_queue_is_refused_by_kueue_while_the_job_runs(story):
    assert "kueue.x-k8s.io/queue-name" in story.refused
    assert "field is immutable" in story.refused
