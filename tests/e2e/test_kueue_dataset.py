"""Trainers that wait for a queued dataset do not keep its quota from it; and what Kueue says of waiting jobs.

Kueue's administrators set up only queues here: no waitForPodsReady, and a priority in only one of the scenarios.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import yaml

from tests import patience
from tests.e2e import queueing
from tests.e2e.cases import Case, Named, installer, table, watch
from tests.e2e.cluster import get, kubectl, log, until, why
from tests.e2e.queueing import CLAIMS, EXAMPLES, Watch, pods, state
from tests.e2e.saying import says

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(3), pytest.mark.takes(70)]
SLOWEST = 3.0  # times as slow, beyond which trainers hold their quota no longer
IDLE = 90  # seconds for which trainers hold their quota while nobody prepares, on a machine that is not slow
QUEUE, PRIORITY = "global.scheduling.queue", "global.scheduling.queuePriority"
# What keeps a job waiting, and what trainyard why says of it
CASES = {
    "queue that is not there": Case("LocalQueue nowhere doesn't exist", "name a LocalQueue", {QUEUE: "nowhere"}),
    "queue without room": Case("insufficient unused quota for cpu", "has no room now", {QUEUE: "full"}),
    "more than the queue has": Case(
        "> maximum capacity (100m)", "more than its queue ever has",
        {QUEUE: "full", "global.training.resources.requests": {"cpu": "1", "memory": "64Mi"}},
    ),
    "resource out of the queue": Case(
        "resource example.com/thing unavailable in ClusterQueue", "have it added to its coveredResources",
        {QUEUE: "full", "global.training.resources": {
            "requests": {"cpu": "10m", "example.com/thing": 1}, "limits": {"example.com/thing": 1}}},
    ),
    "nodes out of the queue": Case(
        "doesn't match node affinity", "rule out every flavor's nodes",
        {QUEUE: "full", "global.scheduling.nodeSelector": {"kubernetes.io/os": "plan9"}},
    ),
    "namespace out of the queue": Case(
        "namespace doesn't match ClusterQueue selector", "have its namespaceSelector changed",
        {QUEUE: "others"},
    ),
    "queue that is stopped": Case("LocalQueue stopped is inactive", "the queue lets nothing in", {QUEUE: "stopped"}),
    "priority that is not there": Case(
        "no WorkloadPriorityClass is named nowhere", "name one that exists", {QUEUE: "full", PRIORITY: "nowhere"}
    ),
}  # fmt: skip

HOLDER = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "holder", "labels": {"kueue.x-k8s.io/queue-name": "full"}},
    "spec": {
        "parallelism": 1,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"no": "node"},  # it holds quota and does nothing
                "containers": [{"name": "holder", "image": "none/none:1", "resources": {"requests": {"cpu": "100m"}}}],
            }
        },
    },
}


@dataclass
class Pair:
    """Trainers of one release that hold a queue's quota, and a release that prepares their dataset."""

    namespace: str
    install: Callable
    name: str
    idle: int

    def start(self, *more: str) -> None:
        """Start the trainers, wait until they wait in their preflight, and queue the preparation."""
        own = f"{QUEUE}={self.name},global.dataset.name={self.name}"
        only = f"{own},dataset.enabled=false,global.training.config.max_steps=1,global.dataset.idleWait={self.idle}"
        self.install(self.name, self.namespace, *CLAIMS, "--set", only, values=EXAMPLES / "run.yaml")
        until("it waits for its dataset", self.waits)
        alone = ",".join([own, "storage.enabled=false,pytorchjob.enabled=false", *more])
        self.install(f"{self.name}-data", self.namespace, *CLAIMS, "--set", alone, values=EXAMPLES / "run.yaml")

    def waits(self) -> bool:
        """Return whether a pod of the trainers says that it waits: before, it might not hear that it is to end."""
        names = [pod["metadata"]["name"] for pod in pods(self.namespace, self.name)]
        return any("waiting for /data/" in log(name, self.namespace, "preflight") for name in names)

    def prepared(self) -> bool:
        """Return whether the dataset is complete."""
        return state(self.namespace, "job", f"{self.name}-data").startswith("Complete")

    def trainers(self) -> str:
        """Return how the trainers have ended; nothing while they have not."""
        return state(self.namespace, "pytorchjob", self.name)


def further_queues(namespace: str) -> list[dict]:
    """Return a queue for each story, and those of the cases."""
    elsewhere = {"namespaceSelector": {"matchLabels": {"not": "this"}}}
    amounts = {"gives-up": "200m", "gives-way": "200m", "full": "100m", "stopped": "1"}
    many = {name: queueing.another(name, namespace, cpu) for name, cpu in amounts.items()}
    many["others"] = queueing.another("others", namespace, "1", **elsewhere)
    many["stopped"][1]["spec"]["stopPolicy"] = "Hold"
    return [one for pair in many.values() for one in pair]


def held(namespace: str) -> bool:
    """Whether Kueue has let the holder in: a case that came before it would find room."""
    (job,) = get("jobs", namespace, fields="metadata.name=holder")
    return not job["spec"].get("suspend")


@pytest.fixture(scope="module")
def queued(namespace, archive, install, kueue):
    """Make claims and queues, one of them full; return the suffix of the names, and a watch over the pods."""
    own = "dataset.enabled=false,pytorchjob.enabled=false"
    install("run", namespace, "--set", own, values=EXAMPLES / "run.yaml")
    with queueing.queues(namespace, *further_queues(namespace)) as suffix:
        kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(HOLDER))
        until("the queue is full", lambda: held(namespace))
        over = Watch(namespace)
        yield suffix, over
        over.stop()


def why_they_wait(namespace: str, image: dict[str, str]) -> dict[str, Named]:
    """Queue what can never run, and note what trainyard why says of each."""
    install = installer(namespace, image, {})
    with ThreadPoolExecutor(2) as pool:
        running = {
            name: pool.submit(watch, case, f"c{number}", namespace, install, {})
            for number, (name, case) in enumerate(CASES.items())
        }
        return {name: one.result() for name, one in running.items()}


def give_up(pair: Pair) -> tuple[str, float]:
    """Play trainers and a preparation of one priority, which waits for their quota.

    Return what was said meanwhile, and the seconds to the dataset.
    """
    started = time.monotonic()
    pair.start()
    meanwhile = says(f"{pair.name}-data", pair.namespace, "insufficient unused quota")
    until("the trainers give up", pair.trainers)
    meanwhile += why(pair.name, pair.namespace)
    until("the dataset is prepared", pair.prepared)
    return meanwhile, time.monotonic() - started


def give_way(pair: Pair, priority: str) -> None:
    """Play trainers, and a preparation of higher priority; no job fails."""
    pair.start(f"{PRIORITY}={priority}")
    until("the dataset is prepared", pair.prepared)
    until("the trainers have ended", pair.trainers)


@pytest.fixture(scope="module")
def played(namespace, queued, install, image):
    """Play the stories side by side: they mostly wait. Returns what becomes of each, by its name."""
    # there is time to see them hold it; a glance at a busy machine may find it 24 times as slow: half an hour
    idle = round(IDLE * min(SLOWEST, patience.slowness()))
    up, way = (Pair(namespace, install, name, idle) for name, idle in (("gives-up", idle), ("gives-way", 600)))
    with ThreadPoolExecutor(3) as pool:
        yield {
            "gives up": pool.submit(give_up, up),
            "gives way": pool.submit(give_way, way, f"deadline{queued[0]}"),
            "waits": pool.submit(why_they_wait, namespace, image),
            "pairs": (up, way),
        }


def test_trainers_that_hold_the_quota_of_their_datasets_job_give_it_back(queued, played):
    meanwhile, seconds = played["gives up"].result()
    pair, _ = played["pairs"]
    print(f"\ndataset complete {seconds:.0f} s after its trainers, which gave up after {pair.idle} s of waiting")
    assert pair.trainers().startswith("Failed")
    assert 2 in queued[1].codes(pair.name, "pytorch")
    assert "nobody has prepared /data/gives-up" in queued[1].words(pair.name)
    assert "see what the dataset's Job waits for" in meanwhile


def test_a_dataset_of_higher_priority_takes_the_place_of_its_trainers(queued, played):
    """They are admitted again when it is complete, and train."""
    played["gives way"].result()
    _, pair = played["pairs"]
    assert 143 in queued[1].codes(pair.name, "preflight")
    assert pair.trainers().startswith("Succeeded")


def test_a_shared_preparation_is_admitted_whole(namespace, queued, played, install):
    suffix, _ = queued
    played["gives up"].result()  # its queue is free
    three = "dataset.parallelism=3,storage.enabled=false,pytorchjob.enabled=false,global.dataset.name=whole"
    install("whole", namespace, *CLAIMS, "--set", f"{QUEUE}=gives-up,{three}", values=EXAMPLES / "run.yaml")
    assert queueing.most_pods(namespace, ["whole"], 3) == {"whole": 0}, "the quota of 200m holds two"
    queueing.give(f"gives-up{suffix}", "300m")
    until("all are there", lambda: len(pods(namespace, "whole")) >= 3)
    until("it is prepared", lambda: state(namespace, "job", "whole").startswith("Complete"))


@pytest.mark.parametrize("name", CASES)
def test_why_says_what_a_queued_job_waits_for(played, name):
    named = played["waits"].result()
    assert named[name].seconds, f"trainyard why did not name it; it said last:\n{named[name].last}"
    if name == [*CASES][-1]:
        print(f"\n{table(named)}")


def test_a_finished_dataset_follows_its_release_to_another_queue(namespace, played, install):
    """Kueue refuses another queue for a Job that has ended: it is a new Job, which finds the dataset complete."""
    other = f"{QUEUE}=gives-way,global.dataset.name=gives-up,storage.enabled=false,pytorchjob.enabled=false"
    install("gives-up-data", namespace, *CLAIMS, "--set", other, values=EXAMPLES / "run.yaml")
    until("it has been looked at again", played["pairs"][0].prepared)
