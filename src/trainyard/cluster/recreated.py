"""Pods that came to an end and have others in their place, and the remedies that are not needed for that reason.

How pods ended that training-operator has recreated stands in their job's events, also when they are gone.
"""

import re

from trainyard.cluster import trainjobs
from trainyard.cluster.findings import Finding, name, say_times, when
from trainyard.cluster.remedies import EXIT_CODES, MEMORY

MANY = 3  # recreated pods from which on an end is no accident
JOB_LABELS = ("training.kubeflow.org/job-name", "batch.kubernetes.io/job-name", trainjobs.JOBSET_NAME)  # on its pods
FOLLOWS = (138, 143)  # codes of pods that lost another one, or were stopped
# Events of training-operator: one a death, and one with the container's word
CREATED = re.compile(r"Created pod: (?P<pod>\S+)")
EXITED = re.compile(r"Pod: [^\s.]+[.](?P<pod>\S+) exited with code (?P<code>\d+)")
ABNORMAL = re.compile(
    r"Error pod (?P<pod>\S+) container (?P<container>\S+) exitCode: \d+ terminated message: ?(?P<said>.*)", re.S
)

KILLED = (
    "killed (SIGKILL) again and again, as by the kernel where memory is short: raise resources.limits.memory, unless "
    "its node was taken down each time"
)


def tells(event: dict) -> bool:
    """Whether an event says how a pod ended that is recreated: what it is worth is said by `explain`."""
    return event.get("reason") == "PyTorchJobRestarting" or ABNORMAL.match(event.get("message", "")) is not None


def explain(thing: dict, state: str, events: list[dict]) -> Finding | None:
    """Explain a job whose pods ended and were recreated; None if none were."""
    mine = [e for e in events if e["involvedObject"].get("uid") == thing["metadata"]["uid"]]
    deaths = [(e, found) for e in mine if (found := EXITED.match(e["message"])) and int(found["code"])]
    if not deaths:
        return None
    again = recreations(mine)
    total = sum(again.values()) or sum(times(event) for event, _ in deaths)
    state += say_times(total)
    words = [(e, told) for e in sorted(mine, key=when) if (told := ABNORMAL.match(e["message"]))]
    if killed := [(e, told) for e, told in words if e.get("reason") == "OOMKilled"]:
        event, told = killed[-1]
        cause = f"{told['pod']} {told['container']} was OOMKilled: it used more memory than its limit"
        return Finding(name(thing), state, f"{cause} (last at {when(event)})", MEMORY)
    causes = [one for one in deaths if int(one[1]["code"]) not in FOLLOWS]
    event, found = max(causes or deaths, key=lambda one: when(one[0]))
    code, pod = int(found["code"]), found["pod"]
    said = next((told["said"].strip() for _, told in reversed(words) if told["pod"] == pod), "")
    cause = f"{pod} ended with {code}{f': {said.splitlines()[-1]}' if said else ''} (last at {when(event)})"
    known = KILLED if code == 137 else EXIT_CODES.get(code, "see its log under logs/ in the run directory")
    often = again.get(pod, times(event)) >= MANY
    return Finding(name(thing), state, cause, known if causes and often else "")


def recreations(events: list[dict]) -> dict[str, int]:
    """Return how often each pod was created anew; the operator may tell one end twice, but not one creation."""
    made = [(found["pod"], times(e)) for e in events if (found := CREATED.match(e["message"]))]
    return {pod: count - 1 for pod, count in made if count > 1}


def times(event: dict) -> int:
    """Return how often an event happened."""
    return event.get("count") or (event.get("series") or {}).get("count") or 1


def drop_overcome_remedy(findings: list[Finding], thing: dict, succeeded: set[str]) -> list[Finding]:
    """Take the remedy from what a pod failed on when its job is one of those that have succeeded since, by a retry."""
    labels = thing["metadata"].get("labels", {})
    if not any(labels.get(key) in succeeded for key in JOB_LABELS):
        return findings
    return [f._replace(state=f"{f.state}, overcome by a retry", remedy="") if f.remedy else f for f in findings]


def name_retries(pods: list[dict]) -> dict[str, str]:
    """Return the newest pod of a Job that waits or runs in place of a failed one, by the failed one's uid.

    One that has failed again and again has none: its cause is no accident, and keeps its remedy.
    """
    places: dict[tuple[str, str], list[dict]] = {}  # by the Job's uid, and the index in it
    for one in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
        index = one["metadata"].get("labels", {}).get(trainjobs.INDEX, "")
        for owner in one["metadata"].get("ownerReferences", []):
            if owner["kind"] == "Job":
                places.setdefault((owner["uid"], index), []).append(one)
    retries: dict[str, str] = {}
    for *before, newest in places.values():
        failed = [one for one in before if one.get("status", {}).get("phase") == "Failed"]
        lives = newest.get("status", {}).get("phase") in ("Pending", "Running")
        if lives and len(failed) < MANY and "deletionTimestamp" not in newest["metadata"]:
            retries |= {one["metadata"]["uid"]: newest["metadata"]["name"] for one in failed}
    return retries


def drop_retried_remedy(findings: list[Finding], thing: dict, retries: dict[str, str]) -> list[Finding]:
    """Take the remedy from what a pod failed on that is one of those with a retry."""
    if (retry := retries.get(thing["metadata"].get("uid", ""))) is None:
        return findings
    return [f._replace(state=f"{f.state}, tried again by {retry}", remedy="") if f.remedy else f for f in findings]


def drop_orphans_remedy(findings: list[Finding], thing: dict, alive: set[str], unseen: set[str]) -> list[Finding]:
    """Take the remedy from a pod whose PyTorchJob or MPIJob is not among those alive, as after a switch of operator.

    Of a job of a kind that is `unseen`, which this user may not list, nobody knows whether it is alive.
    """
    owners = [one for one in thing["metadata"].get("ownerReferences", []) if one["kind"] in ("PyTorchJob", "MPIJob")]
    if all(one["uid"] in alive or f"{one['kind'].lower()}s.kubeflow.org" in unseen for one in owners):
        return findings
    return [f._replace(state=f"{f.state}, its job is gone, and Kubernetes deletes it", remedy="") for f in findings]
