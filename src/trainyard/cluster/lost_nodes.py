"""Pods whose node does not answer: those that Kubernetes still waits for, and those that terminate for ever.

Nobody but the kubelet of its node can end a pod. Without it a deleted pod keeps its name, so that its operator cannot
create the next one, and its volumes stay attached. The taint out-of-service tells Kubernetes that the machine is off:
its pods are then removed at once, and volumes detached
(https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown).
"""

from datetime import datetime

from trainyard.cluster.findings import Finding, events_of, name, since
from trainyard.cluster.pod_remedies import CONTAINERS
from trainyard.cluster.recreated import when
from trainyard.cluster.remedies import remedy

GONE_AFTER = 60  # seconds past its grace period after which a pod that is still there has lost its node
TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


def explain(thing: dict, events: list[dict], now: datetime) -> Finding | None:
    """Explain a pod whose node does not answer; None for any other."""
    node = thing["spec"].get("nodeName", "")
    deleted = thing["metadata"].get("deletionTimestamp")
    if deleted and since(deleted, now) > GONE_AFTER:
        text = f"it should be gone: its node does not answer{f' ({node})' if node else ''}"
        return Finding(name(thing), "Terminating", text, take_out_of_service(node) or remedy("Node lost", CONTAINERS))
    if deleted or not node or not is_unready(thing):
        return None
    lost = [e for e in events_of(thing, events) if e.get("reason") == "NodeNotReady"]
    if not lost:
        return None
    patience = tolerated_seconds(thing)
    then = "keeps the pod until the node is back" if patience is None else f"deletes the pod after {patience} s"
    text = f"its node {node} is not ready (told last at {when(lost[-1])}): Kubernetes {then}"
    return Finding(name(thing), "Running, as far as is known", text, take_out_of_service(node))


def take_out_of_service(node: str) -> str:
    """Return the remedy for the pods of a node that is lost; empty where its name is not known."""
    return node and (
        f"if the machine is off or gone, and only then: kubectl taint nodes {node} {OUT_OF_SERVICE}; the pod is "
        "recreated elsewhere at once. Take the taint off when the node is back. Where the node runs, and its storage "
        "hangs, see its mounts; kubectl delete pod --force frees the pod's name, but not its volumes"
    )


def is_unready(thing: dict) -> bool:
    """Whether a running pod is marked as not ready, as the node controller marks all pods of a lost node."""
    held = thing.get("status", {}).get("conditions") or []
    ready = next((one.get("status") for one in held if one["type"] == "Ready"), "")
    return thing.get("status", {}).get("phase") == "Running" and ready == "False"


def tolerated_seconds(thing: dict) -> int | None:
    """Return the seconds that a pod outlives its node's last sign of readiness; None: it is never deleted for that."""
    found = [one for one in thing["spec"].get("tolerations", []) if one.get("key") in TAINTS]
    seconds = [one["tolerationSeconds"] for one in found if "tolerationSeconds" in one]
    return min(seconds, default=None) if found else 0
