"""Pods that training-operator has recreated: how they ended stands in their job's events, also when they are gone."""

import re

from trainyard.cluster.findings import Finding, name, when
from trainyard.cluster.remedies import EXIT_CODES, MEMORY

MANY = 3  # recreated pods from which on an end is no accident
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
    state = f"{state}, pods recreated {'once' if total == 1 else f'{total} times'}"
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
