"""Faults that nodes report beside readiness: those that a detector found, a near end, GPUs being divided."""

import re
from collections.abc import Iterator
from datetime import datetime

from trainyard.cluster.checks import placement
from trainyard.cluster.checks.diagnosis import WARNING, Diagnosis, show
from trainyard.cluster.findings import since
from trainyard.cluster.survey import ClusterSurvey

# Conditions that are faults where they hold: those of node-problem-detector
# (https://github.com/kubernetes/node-problem-detector), and those that AKS adds to it
# (https://learn.microsoft.com/azure/aks/node-problem-detector)
FAULT = re.compile(
    r"Frequent\w+|(Kubelet|ContainerRuntime)(Unhealthy|Problem)|KernelDeadlock|ReadonlyFilesystem"
    r"|CorruptDockerOverlay2|FilesystemCorruptionProblem|VMEventScheduled"
    r"|GPUMissing|NVLinkStatusInactive|XIDErrors|IBLinkFlapping|UnhealthyNvidia\w+"
)
# Conditions that are faults where they do not hold: those of EKS' node monitoring agent
# (https://docs.aws.amazon.com/eks/latest/userguide/node-health-nma.html)
SOUND = re.compile(r"(AcceleratedHardware|ContainerRuntime|Kernel|Networking|Storage)Ready")
# Taints of who takes a node away: Cluster Autoscaler, Karpenter, and clouds that end a spot instance
LEAVING = re.compile(
    r"ToBeDeletedByClusterAutoscaler|karpenter\.sh/disrupt(ed|ion)|cloud\.google\.com/impending-node-termination"
    r"|aws-node-termination-handler/.+|node\.kubernetes\.io/out-of-service"
)
UNFINISHED = 600.0  # seconds after the end of its grace period in which a deleted pod may still be ending


def check_conditions(node: dict) -> Iterator[Diagnosis]:
    """Name faults of a node that a detector wrote into its conditions."""
    label = f"node/{node['metadata']['name']}"
    for one in node.get("status", {}).get("conditions") or []:
        kind, holds = one["type"], one.get("status")
        if (holds == "True" and FAULT.fullmatch(kind)) or (holds == "False" and SOUND.fullmatch(kind)):
            told = one.get("message") or one.get("reason", "")
            seen = f"its detector of problems says {kind}: {holds} ({told})"
            remedy = f"cordon it, then repair or replace it: kubectl cordon {node['metadata']['name']}"
            yield Diagnosis(WARNING, label, seen, remedy)


def check_departure(node: dict) -> Iterator[Diagnosis]:
    """Name a node that is being taken away."""
    label, taints = f"node/{node['metadata']['name']}", node["spec"].get("taints") or []
    why = next((one["key"] for one in taints if LEAVING.fullmatch(one["key"])), "")
    if node["metadata"].get("deletionTimestamp"):
        why = "its object is being deleted"
    if why:
        seen = f"it is being taken away ({why}): a pod that is placed on it ends soon"
        yield Diagnosis(WARNING, label, seen, "wait for the node that replaces it, or raise the least size of its pool")


def check_mig(node: dict) -> Iterator[Diagnosis]:
    """Name a node whose GPUs are being divided by MIG, or could not be."""
    state = (node["metadata"].get("labels") or {}).get("nvidia.com/mig.config.state", "success")
    if state != "success":
        seen = f"its GPUs are not divided as its label nvidia.com/mig.config says: {state}"
        remedy = "see the MIG manager's pod on it: kubectl get pods -A -l app=nvidia-mig-manager -o wide"
        if state in ("pending", "rebooting"):
            remedy = f"wait until the MIG manager is done, or {remedy}"
        yield Diagnosis(WARNING, f"node/{node['metadata']['name']}", seen, remedy)


def check_stuck_pods(pods: list[dict], now: datetime) -> Iterator[Diagnosis]:
    """Name pods that were deleted long ago, have not ended, and keep devices from others."""
    for pod in pods:
        meta = pod["metadata"]
        held = {name: n for name, n in placement.requests(pod["spec"]).items() if "/" in name}
        deleted = meta.get("deletionTimestamp")  # the end of its grace period
        node = pod["spec"].get("nodeName")  # none: it waits for its finalizers alone, and holds nothing
        if held and node and deleted and since(deleted, now) > UNFINISHED:
            devices = ", ".join(f"{show(number, name)} {name}" for name, number in held.items())
            minutes = since(deleted, now) / 60
            seen = f"it should have ended {minutes:.0f} minutes ago, and keeps {devices} of {node}"
            force = f"kubectl -n {meta['namespace']} delete pod {meta['name']} --force"
            remedy = f"see its node; if the machine is off or gone, and only then: {force} gives them back"
            yield Diagnosis(WARNING, f"pod/{meta['name']}", seen, remedy)


def examine(survey: ClusterSurvey, nodes: list[dict]) -> Iterator[Diagnosis]:
    """Name what nodes say of themselves, and pods that do not leave them."""
    for node in nodes:
        yield from (*check_conditions(node), *check_departure(node), *check_mig(node))
    yield from check_stuck_pods(survey.of("pods"), survey.now)
