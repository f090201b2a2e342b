"""Pods whose node does not answer: those that Kubernetes still waits for, and those that terminate for ever.

Nobody but the kubelet of its node can end a pod. Without it a deleted pod keeps its name, so that its operator cannot
create the next one, and its volumes stay attached. The taint out-of-service tells Kubernetes that the machine is off:
its pods are then removed at once, and volumes detached
(https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown).

The node controller marks the ready pods of a lost node as not ready, without a reason; a kubelet always gives one. So a
pod that is ready is on a node that answers, and the taint would be wrong; one that was not ready before tells nothing.
So of a pod that has not started the node itself is looked at, where this user may read it.
"""

from collections.abc import Mapping
from datetime import datetime

from trainyard.cluster.findings import Finding, events_of, name, readiness, since, when
from trainyard.cluster.pod_remedies import CONTAINERS
from trainyard.cluster.remedies import remedy

GONE_AFTER = 60  # seconds past its grace period after which a pod that is still there has lost its node
TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
OVER = ("Succeeded", "Failed")  # phases of a pod that has ended
HANGS = (
    "its storage hangs, or a driver: see the node's mounts and dmesg; when that answers, the pod goes by itself, else "
    "restart the node"
)
FINALIZERS = (
    "who set a finalizer removes it: see that its controller runs (batch.kubernetes.io/job-tracking is of "
    "kube-controller-manager)"
)


def explain(thing: dict, events: list[dict], now: datetime, nodes: Mapping[str, dict]) -> Finding | None:
    """Explain a pod whose node does not answer; None for any other. `nodes` are those of pods that have not started."""
    if deleted := thing["metadata"].get("deletionTimestamp"):
        return explain_deleted(thing) if since(deleted, now) > GONE_AFTER else None
    node = thing["spec"].get("nodeName", "")
    told = ""
    if is_starting(thing):
        ready = readiness(nodes.get(node, {}))
        if ready.get("status") == "Unknown":  # a kubelet says False itself, as while its network plugin starts
            told = f"has not answered since {ready.get('lastTransitionTime')}"
    elif node and is_unready(thing):
        lost = [e for e in events_of(thing, events) if e.get("reason") == "NodeNotReady"]
        told = f"is not ready (told last at {when(lost[-1])})" if lost else ""
    if not told:
        return None
    patience = tolerated_seconds(thing)
    then = "keeps the pod until the node is back" if patience is None else f"deletes the pod after {patience} s"
    state = f"{thing['status']['phase']}, as far as is known"
    return Finding(name(thing), state, f"its node {node} {told}: Kubernetes {then}", take_out_of_service(node))


def explain_deleted(thing: dict) -> Finding:
    """Explain a deleted pod that should be gone."""
    if held := explain_finalizers(thing):
        return held
    node, ready = thing["spec"].get("nodeName", ""), readiness(thing)
    if ready.get("status") == "True":
        text = f"it should be gone, and its node {node} answers, as far as is known: a process in it does not end"
        return Finding(name(thing), "Terminating", text, HANGS)
    text = f"it should be gone: its node does not answer{f' ({node})' if node else ''}"
    text += ", or a process in it does not end" if ready.get("reason") else ""
    return Finding(name(thing), "Terminating", text, take_out_of_service(node) or remedy("Node lost", CONTAINERS))


def take_out_of_service(node: str) -> str:
    """Return the remedy for the pods of a node that is lost; empty where its name is not known."""
    return node and (
        f"if the machine is off or gone, and only then: kubectl taint nodes {node} {OUT_OF_SERVICE}; the pod is "
        "recreated elsewhere at once. Take the taint off when the node is back. Where the node runs, and its storage "
        "hangs, see its mounts; kubectl delete pod --force frees the pod's name, but not its volumes"
    )


def is_starting(thing: dict) -> bool:
    """Whether a pod has a node, and its main containers have not started there."""
    return bool(thing["spec"].get("nodeName") and thing.get("status", {}).get("phase") == "Pending")


def is_held(thing: dict, now: datetime) -> bool:
    """Whether a deleted pod cannot end: its node does not answer, or it should be gone for long."""
    deleted = thing["metadata"].get("deletionTimestamp")
    return bool(deleted) and (is_unready(thing) or since(deleted, now) > GONE_AFTER)


def is_unready(thing: dict) -> bool:
    """Whether a running pod is marked as not ready, as the node controller marks all pods of a lost node."""
    ready = readiness(thing)
    marked = ready.get("status") == "False" and not ready.get("reason")
    return bool(thing.get("status", {}).get("phase") == "Running" and marked)


def explain_finalizers(thing: dict) -> Finding | None:
    """Explain a deleted pod that has ended, or never had a node, and waits for its finalizers alone; else None."""
    held = thing["metadata"].get("finalizers")
    if not held or (thing["spec"].get("nodeName") and thing.get("status", {}).get("phase") not in OVER):
        return None
    text = f"it has ended, and waits for its finalizers: {', '.join(held)}"
    return Finding(name(thing), "Terminating", text, FINALIZERS)


def tolerated_seconds(thing: dict) -> int | None:
    """Return the seconds that a pod outlives its node's last sign of readiness; None: it is never deleted for that."""
    found = [
        one
        for one in thing["spec"].get("tolerations") or []
        if one.get("key", "") in ("", *TAINTS) and one.get("effect", "") in ("", "NoExecute")  # empty: every one
    ]
    seconds = [one["tolerationSeconds"] for one in found if "tolerationSeconds" in one]
    return min(seconds, default=None) if found else 0
