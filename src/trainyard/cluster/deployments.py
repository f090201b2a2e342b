"""Explain a Deployment: the file browser's, the one part of a release that does not end."""

from trainyard.cluster.findings import Finding, conditions, events_of, name
from trainyard.cluster.remedies import remedy

UNHEALTHY = "nothing listens there: set filebrowser.port to the port of filebrowser.image's server, and see its log"


def explain(thing: dict, pods: list[dict], events: list[dict]) -> Finding:
    """Say whether a Deployment serves, and if not why: its pods cannot be made, or do not listen."""
    held = conditions(thing)
    if "ReplicaFailure" in held:
        text = held["ReplicaFailure"].get("message", "")
        return Finding(name(thing), "Failed", text, remedy(text) or "see kubectl describe replicaset")
    if "Available" in held:
        return Finding(name(thing), "Available")
    wanted = thing["spec"]["selector"]["matchLabels"].items()
    for pod in pods:
        warnings = [e for e in events_of(pod, events) if e.get("reason") == "Unhealthy"]
        if warnings and wanted <= pod["metadata"].get("labels", {}).items() and running(pod):
            return Finding(name(thing), "not ready", warnings[-1]["message"], UNHEALTHY)
    return Finding(name(thing), "not ready")


def running(pod: dict) -> bool:
    """Whether a pod's containers run; one that ended or cannot start has a cause of its own."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return bool(statuses) and all("running" in one["state"] for one in statuses)
