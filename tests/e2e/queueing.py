"""Kueue's queues for tests: those of examples/kueue/cpu under separate names, and observations of their jobs."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from tests.e2e import cluster, owners
from tests.e2e.cluster import get, kubectl, log

EXAMPLES = cluster.ROOT / "examples" / "kueue" / "cpu"
CLAIMS = [  # a further release on those of release `run`
    *("--set", "global.storage.data.existingClaim=run-data,global.storage.results.existingClaim=run-results"),
    *("--set", "global.storage.data.size=,global.storage.results.size="),
]
TELLS = ("-master-0", "-launcher-", "-node-0-0-")  # pods whose logs tell of a run's progress


def renamed(suffix: str, namespace: str) -> list[dict]:
    """Return the example's objects for another namespace, those of the whole cluster with a suffix to their names."""
    objects = list(yaml.safe_load_all((EXAMPLES / "queues.yaml").read_text()))
    for one in objects:
        one["metadata"]["labels"] = dict(owners.LABELS)
        if one["kind"] == "LocalQueue":
            one["metadata"]["namespace"] = namespace
            one["spec"]["clusterQueue"] += suffix
        else:
            one["metadata"]["name"] += suffix
        if one["kind"] == "ClusterQueue":
            one["spec"]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] = namespace
            (flavor,) = one["spec"]["resourceGroups"][0]["flavors"]
            flavor["name"] += suffix
    return objects


@contextmanager
def queues(namespace: str, *further: dict) -> Iterator[str]:
    """Make the example's queues for a namespace, and further objects; yield the suffix of their names."""
    suffix = f"-{namespace}"
    objects = [*renamed(suffix, namespace), *further]
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    # of the whole cluster: another file of tests may apply it in the same moment, which client-side apply refuses
    kubectl("apply", "--server-side", "-f", "examples/kueue/mpi-operator.yaml")
    try:
        yield suffix
    finally:
        for one in reversed(objects):
            home = namespace if one["kind"] == "LocalQueue" else None
            owners.delete(f"{one['kind'].lower()}.kueue.x-k8s.io", one["metadata"]["name"], home)


def another(name: str, namespace: str, cpu: str, **spec: object) -> list[dict]:
    """Return a further ClusterQueue with its LocalQueue, of so much CPU."""
    suffix = f"-{namespace}"
    _, cluster_queue, local, _ = renamed(suffix, namespace)
    cluster_queue["metadata"]["name"] = name + suffix
    cluster_queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = cpu
    cluster_queue["spec"] |= spec
    local["metadata"]["name"] = name
    local["spec"]["clusterQueue"] = name + suffix
    return [cluster_queue, local]


def give(cluster_queue: str, cpu: str) -> None:
    """Set how much CPU a ClusterQueue has."""
    path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
    patch = json.dumps([{"op": "replace", "path": path, "value": cpu}])
    kubectl("patch", "clusterqueue", cluster_queue, "--type=json", "-p", patch)


def pods(namespace: str, release: str) -> list[dict]:
    """Return a release's pods."""
    return get("pods", namespace, f"app.kubernetes.io/instance={release}")


def most_pods(namespace: str, releases: list[str], seconds: float) -> dict[str, int]:
    """Return the most pods, in any state, that each release had while one looked for some seconds."""
    most = dict.fromkeys(releases, 0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = [pod["metadata"]["labels"].get("app.kubernetes.io/instance") for pod in get("pods", namespace)]
        most = {release: max(count, found.count(release)) for release, count in most.items()}
        time.sleep(0.3)
    return most


def state(namespace: str, kind: str, release: str) -> str:
    """Return which of the conditions that end a release's job holds, with its message; empty while there is none."""
    for job in get(kind, namespace, f"app.kubernetes.io/instance={release}"):
        for held in job.get("status", {}).get("conditions", []):
            if held["status"] == "True" and held["type"] in ("Succeeded", "Complete", "Failed"):
                return f"{held['type']} {held.get('message', '')}"
    return ""


def steps(namespace: str, release: str) -> tuple[int, int]:
    """Return the step that a release's newest start resumed from, and the last step that it logs; 0 at first."""
    tells = [pod for pod in pods(namespace, release) if any(part in pod["metadata"]["name"] for part in TELLS)]
    if not tells:
        return 0, 0
    newest = max(tells, key=lambda pod: pod["metadata"]["creationTimestamp"])
    container = newest["spec"]["containers"][0]["name"]
    text = log(newest["metadata"]["name"], namespace, container)
    resumed = re.findall(r"resumed at step (\d+)", text)
    done = re.findall(r"step +(\d+)/", text)
    return int(resumed[-1]) if resumed else 0, int(done[-1]) if done else 0


class Watch:
    """Statuses of pods while they exist: exit codes, and the termination messages of containers."""

    def __init__(self, namespace: str):
        self.ended: dict[tuple[str, str], tuple[str, int, str]] = {}  # (uid, container) -> release, code, words
        self.namespace = namespace
        self.stop = cluster.watch(self._note, "pods", namespace)

    def _note(self, pod: dict) -> None:
        release = pod["metadata"].get("labels", {}).get("app.kubernetes.io/instance", "")
        for key in ("initContainerStatuses", "containerStatuses"):
            for status in pod["status"].get(key, []):
                if over := status["state"].get("terminated"):
                    place = pod["metadata"]["uid"], status["name"]
                    self.ended[place] = release, over["exitCode"], over.get("message", "")

    def _all(self) -> list[tuple[tuple[str, str], tuple[str, int, str]]]:
        """Return all ends, those included that a busy machine has not shown yet: those of pods that are still there."""
        for pod in get("pods", self.namespace):
            self._note(pod)
        return list(self.ended.items())

    def codes(self, release: str, container: str) -> list[int]:
        """Return the exit codes of a release's containers of that name, sorted."""
        found = [(place, one) for place, one in self._all() if one[0] == release]
        return sorted(code for (_, name), (_, code, _) in found if name == container)

    def words(self, release: str) -> str:
        """Return the termination messages of all of a release's containers."""
        return "\n".join(words for _, (mine, _, words) in self._all() if mine == release)
