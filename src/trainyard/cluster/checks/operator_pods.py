"""Operators that run, and should not be relied on: those that run twice, and those that restart again and again."""

from collections.abc import Iterator
from datetime import datetime

from trainyard.cluster.checks.diagnosis import WARNING, Diagnosis, several
from trainyard.cluster.demand import at
from trainyard.cluster.findings import since

OFTEN, LATELY = 5, 900.0  # restarts of a container, and seconds since its last end, from which it is named


def name_of(thing: dict) -> str:
    """Return namespace and name of a deployment."""
    return f"{thing['metadata']['namespace']}/{thing['metadata']['name']}"


def pods_of(thing: dict, pods: list[dict]) -> Iterator[dict]:
    """Yield the pods of a deployment."""
    wanted, home = at(thing, "spec.selector.matchLabels", {}), thing["metadata"]["namespace"]
    for pod in pods:
        if pod["metadata"]["namespace"] == home and wanted.items() <= (pod["metadata"].get("labels") or {}).items():
            yield pod


def check_duplicates(name: str, things: list[dict], words: dict[str, str]) -> Iterator[Diagnosis]:
    """Name deployments of one operator that all act on the jobs of every namespace; `words`: arguments, by place."""
    acting = [
        thing
        for thing in things
        if thing.get("status", {}).get("readyReplicas") and "--namespace" not in words[name_of(thing)]
    ]
    if len(acting) > 1:
        second = acting[-1]["metadata"]
        seen = f"{name} runs {len(acting)} times ({several(name_of(one) for one in acting)}): all act on the same jobs"
        remedy = f"keep one: kubectl -n {second['namespace']} delete deployment/{second['name']}"
        yield Diagnosis(WARNING, f"deployment/{second['name']}", seen, remedy)


def check_restarts(name: str, thing: dict, pods: list[dict], now: datetime) -> Iterator[Diagnosis]:
    """Name an operator whose pod is ready just now, and has ended often and lately, with the reason."""
    meta = thing["metadata"]
    for pod in pods_of(thing, pods):
        for one in pod.get("status", {}).get("containerStatuses") or []:
            over = at(one, "lastState.terminated", {})
            times, ended = one.get("restartCount", 0), over.get("finishedAt")
            if times >= OFTEN and ended and since(ended, now) < LATELY:
                why = over.get("reason", "Error")
                minutes = since(ended, now) / 60
                seen = (
                    f"{name} has restarted {times} times, last {minutes:.0f} minutes ago ({why}): jobs wait meanwhile"
                )
                remedy = f"kubectl -n {meta['namespace']} logs deployment/{meta['name']} --previous"
                if why == "OOMKilled":
                    remedy = f"raise its memory limit: kubectl -n {meta['namespace']} edit deployment/{meta['name']}"
                yield Diagnosis(WARNING, f"deployment/{meta['name']}", seen, remedy)
