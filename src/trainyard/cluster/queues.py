"""Explains why a job waits in Kueue's queue, in Kueue's own words."""

from collections.abc import Sequence
from datetime import datetime

from trainyard.cluster.findings import Finding, conditions, in_namespace, name, since
from trainyard.cluster.remedies import QUEUES, remedy

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
RESUME_AFTER = 30  # seconds after which an admitted job that is still suspended has been left by its operator


def explain_suspension(
    thing: dict, held: dict[str, dict], workloads: Sequence[dict] | None, classes: Sequence[dict] | None, now: datetime
) -> Finding:
    """Explain a job that does not start on purpose: Kueue's queue, or values.

    `workloads` are the namespace's; `classes` the WorkloadPriorityClasses. None: they cannot be read.
    """
    uid = thing["metadata"]["uid"]
    known = workloads or ()
    mine = [w for w in known if any(o.get("uid") == uid for o in w["metadata"].get("ownerReferences", []))]
    if mine:
        return explain_workload(thing, max(mine, key=lambda w: w["metadata"]["creationTimestamp"]), known, now)
    labels = thing["metadata"].get("labels", {})
    if not labels.get(QUEUE):
        return Finding(name(thing), "Suspended", held.get("Suspended", {}).get("message", "values say suspend: true"))
    if workloads is None:
        cause = f"it carries the queue {labels[QUEUE]}; this user may not read what Kueue says of it (workloads)"
        return Finding(name(thing), "queued", cause)
    wanted = labels.get(PRIORITY)
    if wanted and classes is not None and wanted not in [c["metadata"]["name"] for c in classes]:
        cause = f"no WorkloadPriorityClass is named {wanted}, so Kueue makes no Workload for it"
        return Finding(name(thing), "queued", cause, remedy(cause, QUEUES))
    return Finding(
        name(thing),
        "queued",
        f"it carries the queue {labels[QUEUE]}, and Kueue has made no Workload for it",
        "is Kueue running, with the integration of this kind of job? Else empty global.scheduling.queue",
    )


def explain_workload(thing: dict, workload: dict, workloads: Sequence[dict], now: datetime) -> Finding:
    """Explain a job by its Workload: what it waits for, and to whom it has given way."""
    held = conditions(workload)
    if "Evicted" in held:  # first: it is still admitted while its pods are being stopped
        return explain_eviction(thing, workload, workloads)
    if "Admitted" in held:
        return explain_admission(thing, since(held["Admitted"]["lastTransitionTime"], now))
    checks = [c for c in workload.get("status", {}).get("admissionChecks") or [] if c.get("state") != "Ready"]
    if "QuotaReserved" in held and checks:
        text = f"it has its quota and waits for the check {checks[0]['name']}: {checks[0].get('message', '')}"
        return Finding(name(thing), "queued", text.strip(": "), remedy(text, QUEUES))
    if workload["spec"].get("active") is False:
        return held_back(thing, workload, "by hand")
    text = waiting(workload)
    return Finding(name(thing), "queued", text, remedy(text, QUEUES))


def explain_eviction(thing: dict, workload: dict, workloads: Sequence[dict]) -> Finding:
    """Explain a job that had to give its quota back."""
    held = conditions(workload)
    out = held["Evicted"]
    if workload["spec"].get("active") is False:
        return held_back(thing, workload, out.get("message", "by hand"))
    state = "preempted" if out.get("reason") == "Preempted" else "evicted"
    then = "its pods are being stopped" if "QuotaReserved" in held else waiting(workload)
    text = " ".join(filter(None, (out.get("message", "") + preemptor(out.get("message", ""), workloads) + ";", then)))
    return Finding(name(thing), f"{state}, queued again", text, remedy(text, QUEUES))


def held_back(thing: dict, workload: dict, cause: str) -> Finding:
    """Explain a job whose Workload is inactive."""
    patch = """--type merge -p '{"spec":{"active":true}}'"""
    text = f"its Workload was made inactive: {cause}"
    again = f"kubectl patch {name(workload)} {patch}{in_namespace(workload)}"
    return Finding(name(thing), "held back", text, f"to let it in again: {again}")


def waiting(workload: dict) -> str:
    """Return why Kueue has no quota for a job."""
    said = {c["type"]: c.get("message", "") for c in workload.get("status", {}).get("conditions") or []}
    return said.get("QuotaReserved", "") or f"it waits in Kueue's queue {workload['spec'].get('queueName', '')}"


def preemptor(message: str, workloads: Sequence[dict]) -> str:
    """Name the job to which one gave way, where it is in the same namespace; Kueue tells its Workload's uid alone."""
    for workload in workloads:
        if workload["metadata"]["uid"] in message:
            for owner in workload["metadata"].get("ownerReferences", []):
                return f" ({owner['kind'].lower()}/{owner['name']})"
    return ""


def explain_admission(thing: dict, seconds: float) -> Finding:
    """Explain a job that Kueue lets run and that is still suspended: for a moment, or because its operator cannot."""
    if seconds < RESUME_AFTER:
        return Finding(name(thing), "admitted", "Kueue has admitted it; it is being resumed")
    text = f"Kueue admitted it {seconds:.0f} s ago, and its operator has not resumed it"
    if thing["kind"] == "MPIJob":
        return Finding(name(thing), "not resumed", text, remedy("mpi-operator: not resumed", QUEUES))
    return Finding(name(thing), "not resumed", text, "see its operator's log")
