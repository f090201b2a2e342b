"""Say, for each object of a Helm release, what it waits for or failed on, and the remedy.

    scripts/why RELEASE [-n NAMESPACE]

Reads conditions, events and termination messages; the answer also for what never started a container.
"""

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from release import kube
from release.remedies import EXIT_CODES, remedy

STUCK_AFTER = 20  # seconds after which an object without any status means that nobody looks at it


class Finding(NamedTuple):
    """What a person should know of one object: its state, the cause and the remedy (empty when all is well)."""

    object: str
    state: str
    cause: str = ""
    remedy: str = ""


def age(thing: dict, now: datetime) -> float:
    """Return the seconds since an object was made."""
    return (now - datetime.fromisoformat(thing["metadata"]["creationTimestamp"].replace("Z", "+00:00"))).total_seconds()


def name(thing: dict) -> str:
    """Return kind/name in lower case, as kubectl prints it."""
    return f"{thing['kind'].lower()}/{thing['metadata']['name']}"


def events_of(thing: dict, events: list[dict]) -> list[dict]:
    """Return an object's warnings, newest last."""
    mine = [
        e for e in events if e["involvedObject"].get("uid") == thing["metadata"]["uid"] and e.get("type") == "Warning"
    ]
    return sorted(mine, key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or "")


def claim(thing: dict, events: list[dict]) -> Finding:
    """Explain a PersistentVolumeClaim."""
    phase = thing.get("status", {}).get("phase", "?")
    if phase == "Bound":
        return Finding(name(thing), "Bound")
    warnings = events_of(thing, events)
    if warnings:
        text = warnings[-1]["message"]
        modes = ", ".join(thing["spec"].get("accessModes", []))
        known = (
            remedy(text)
            or f"the StorageClass could not make a {modes} volume: name another under global.storage.*.storageClass"
        )
        return Finding(name(thing), phase, text, known)
    waiting = [e for e in events if e["involvedObject"].get("uid") == thing["metadata"]["uid"]]
    if any(e.get("reason") == "WaitForFirstConsumer" for e in waiting):
        return Finding(name(thing), phase, "waits for the first pod that uses it")
    if not thing["spec"].get("storageClassName"):
        return Finding(
            name(thing), phase, "the cluster has no default StorageClass", "set global.storage.*.storageClass"
        )
    return Finding(name(thing), phase, "not provisioned yet", "kubectl describe pvc shows the provisioner's events")


def conditions(thing: dict) -> dict[str, dict]:
    """Return the conditions that hold, by type."""
    return {c["type"]: c for c in thing.get("status", {}).get("conditions") or [] if c.get("status") == "True"}


def job(thing: dict, events: list[dict], now: datetime) -> Finding:
    """Explain a Job, PyTorchJob or MPIJob."""
    held = conditions(thing)
    if "Failed" in held:
        return Finding(name(thing), "Failed", held["Failed"].get("message", ""), "see its pods below")
    for state in ("Succeeded", "Complete", "Suspended"):
        if state in held:
            return Finding(name(thing), state, held[state].get("message", "") if state == "Suspended" else "")
    warnings = events_of(thing, events)
    if warnings:
        text = warnings[-1]["message"]
        return Finding(name(thing), next(iter(held), "Pending"), text, remedy(text))
    if not thing.get("status") and thing["kind"] != "Job" and age(thing, now) > STUCK_AFTER:
        operator = kube.OPERATORS[f"{thing['kind'].lower()}s.kubeflow.org"]
        return Finding(
            name(thing),
            "ignored",
            f"no operator has looked at it in {age(thing, now):.0f} s",
            f"{operator} is not running or does not watch this namespace: kubectl get pods -A | grep {operator}",
        )
    return Finding(name(thing), "Running" if "Running" in held or thing.get("status", {}).get("active") else "Pending")


def containers(pod: dict) -> Iterator[tuple[dict, bool]]:
    """Yield a pod's container statuses, and whether each is an init container."""
    status = pod.get("status", {})
    for one in status.get("initContainerStatuses", []):
        yield one, True
    for one in status.get("containerStatuses", []):
        yield one, False


def ended(state: dict, label: str) -> Finding | None:
    """Explain a container that ended with an error."""
    code = state.get("exitCode", 0)
    if not code:
        return None
    message = state.get("message", "").strip()
    if state.get("reason") == "OOMKilled":
        return Finding(
            label,
            "OOMKilled",
            "the container used more memory than its limit",
            "raise resources.limits.memory, or lower batch.micro and data.workers (shared memory counts too)",
        )
    cause = message.splitlines()[-1] if message else state.get("reason", "")
    known = EXIT_CODES.get(code, "")
    return Finding(label, f"exit {code}", cause or known, remedy(message) or known or "see its log: kubectl logs")


def pod(thing: dict, events: list[dict], namespace: str) -> list[Finding]:
    """Explain a pod: why it is not scheduled, what a container waits for, or how one ended."""
    label, phase = name(thing), thing.get("status", {}).get("phase", "?")
    found = []
    for status, init in containers(thing):
        where = f"{label} {status['name']}"
        waiting = status["state"].get("waiting", {})
        over = status["state"].get("terminated") or status.get("lastState", {}).get("terminated")
        if over and (finding := ended(over, where)) and not (status["state"].get("running") and not init):
            found.append(finding)
        elif waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            text = f"{waiting['reason']}: {waiting.get('message', '')}".strip(": ")
            found.append(Finding(where, "waiting", text, remedy(text)))
        elif init and status["state"].get("running"):
            last = kube.logs(thing["metadata"]["name"], namespace, status["name"], tail=1).strip()
            found.append(Finding(where, "running", last))
    if not found and phase == "Pending":
        found += [Finding(label, "Pending", e["message"], remedy(e["message"])) for e in events_of(thing, events)[-1:]]
    return found or [Finding(label, phase)]


def explain(release: str, namespace: str, objects: dict[str, list[dict]], now: datetime) -> list[Finding]:
    """Turn a release's objects into findings, in the order in which things depend on each other."""
    events = objects["events"]
    findings = [
        Finding(
            f"crd/{one['kind']}",
            "missing",
            f"this cluster does not know {one['kind']}",
            f"install {kube.OPERATORS[one['kind']]} (docs/operators.md)",
        )
        for one in objects["missing_kinds"]
    ]
    findings += [claim(c, events) for c in objects["persistentvolumeclaims"]]
    jobs = objects["jobs.batch"] + objects["pytorchjobs.kubeflow.org"] + objects["mpijobs.kubeflow.org"]
    findings += [job(j, events, now) for j in jobs]
    for p in objects["pods"]:
        findings += pod(p, events, namespace)
    if not jobs and not objects["pods"]:
        findings.append(
            Finding(
                f"release/{release}",
                "not found",
                f"namespace {namespace} holds nothing that runs for it",
                f"helm list -n {namespace}; was it installed here, or did helm install refuse it?",
            )
        )
    return findings


def show(findings: list[Finding]) -> str:
    """Lay findings out for people: one line an object, cause and remedy under it."""
    width = max(len(f.object) for f in findings)
    lines = []
    for f in findings:
        lines.append(f"{f.object:<{width}}  {f.state}")
        lines += [f"    because: {f.cause}"] if f.cause else []
        lines += [f"    remedy:  {f.remedy}"] if f.remedy else []
    return "\n".join(lines)


def main() -> int:
    """Print the findings; end 1 when one of them has a remedy, 2 when the cluster cannot be read."""
    parser = argparse.ArgumentParser(prog="scripts/why", description=__doc__.splitlines()[0])
    parser.add_argument("release")
    parser.add_argument("-n", "--namespace", default="default")
    args = parser.parse_args()
    try:
        findings = explain(
            args.release, args.namespace, kube.read_release(args.release, args.namespace), datetime.now(UTC)
        )
    except kube.KubeError as error:
        print(f"why: {error}", file=sys.stderr)
        return 2
    print(show(findings))
    return 1 if any(f.remedy for f in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
