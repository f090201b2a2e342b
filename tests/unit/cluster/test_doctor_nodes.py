"""doctor on nodes that say themselves what is wrong, and on rules that send pods to other nodes."""

import pytest

from tests.unit.cluster import clusters
from tests.unit.cluster.changes import Change, add, both, change, check_named, condition, of, values
from tests.unit.cluster.clusters import NAMESPACE, found, sound, stamp, thing
from trainyard.cluster import proposal
from trainyard.cluster.checks.diagnosis import ERROR, WARNING

LABELS = "metadata labels nvidia.com/"
HELD = [{"resources": {"requests": {"nvidia.com/gpu": "8"}}}]


def tainted(key: str) -> Change:
    """Return a change that puts a taint on both GPU nodes."""
    taint = {"key": key, "effect": "NoSchedule"}
    return both(*(change("nodes", name, "spec taints", [taint]) for name in ("gpu-1", "gpu-2")))


def deleted(seconds: float) -> Change:
    """Return a change that adds a pod with eight GPUs whose grace period ended so many seconds ago."""
    meta = {"deletionTimestamp": stamp(seconds)}
    return add("pods", thing("Pod", "stuck", "team", metadata=meta, spec={"nodeName": "gpu-1", "containers": HELD}))


def runtime(**parts: object) -> Change:
    return add("runtimeclasses", thing("RuntimeClass", "nvidia", api="node.k8s.io/v1", handler="nvidia", **parts))


def handlers(*nodes: str) -> Change:
    """Return a change by which all nodes list their handlers: these have nvidia's, too."""

    def do(seen: clusters.survey.ClusterSurvey) -> None:
        for node in seen.of("nodes"):
            mine = ("", "nvidia") if node["metadata"]["name"] in nodes else ("",)
            node["status"]["runtimeHandlers"] = [{"name": one} for one in mine]

    return do


# What is changed -> level, object, and words of what is seen and of the remedy
WAYS: dict[str, tuple[Change, str, str, str, str]] = {
    "disks that are full": (
        tainted("node.kubernetes.io/disk-pressure"), ERROR, "pytorchjob", "2 had untolerated taint", "free the disks"),
    "nodes that no cloud has set up": (
        tainted("node.cloudprovider.kubernetes.io/uninitialized"), ERROR, "pytorchjob", "2 had untolerated taint",
        "cloud's controller manager"),
    "a node that a detector blames": (
        condition("XIDErrors", "True", "Xid 79"), WARNING, "node/gpu-1", "XIDErrors: True (Xid 79)",
        "kubectl cordon gpu-1"),
    "a node whose kernel hangs": (
        condition("KernelDeadlock", "True", "task hung"), WARNING, "node/gpu-1", "KernelDeadlock", "cordon"),
    "a node that an agent calls unsound": (
        condition("AcceleratedHardwareReady", "False", "DCGMError"), WARNING, "node/gpu-1", "DCGMError", "replace it"),
    "a node that its autoscaler takes away": (
        change("nodes", "gpu-1", "spec taints", [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]),
        WARNING, "node/gpu-1", "being taken away (ToBeDeletedByClusterAutoscaler)", "least size of its pool"),
    "a node that is being deleted": (
        change("nodes", "gpu-1", "metadata deletionTimestamp", stamp()), WARNING, "node/gpu-1", "being deleted",
        "the node that replaces it"),
    "GPUs that could not be divided": (
        change("nodes", "gpu-1", f"{LABELS}mig.config.state", "failed"), WARNING, "node/gpu-1",
        "nvidia.com/mig.config says: failed", "MIG manager's pod"),
    "GPUs that are being divided": (
        change("nodes", "gpu-1", f"{LABELS}mig.config.state", "pending"), WARNING, "node/gpu-1", "pending",
        "wait until"),
    "GPUs of a pod that does not end": (
        deleted(4000), WARNING, "pod/stuck", "67 minutes ago, and keeps 8 nvidia.com/gpu of gpu-1",
        "if the machine is off or gone, and only then: kubectl -n team delete pod stuck --force"),
    "a namespace whose pods go elsewhere": (
        change("namespace", NAMESPACE, "metadata annotations", {"openshift.io/node-selector": "pool=none"}), WARNING,
        f"namespace/{NAMESPACE}", "sends pods to nodes with pool=none", "openshift.io/node-selector-"),
}  # fmt: skip
OF_RUNTIMES: dict[str, tuple[Change, str, str, str]] = {
    "no node has its handler": (both(runtime(), handlers()), ERROR, "has no handler nvidia", "container toolkit"),
    "one node lacks its handler": (both(runtime(), handlers("gpu-1", "cpu-1")), WARNING, "of gpu-2 has no", "toolkit"),
    "it sends pods elsewhere": (
        runtime(scheduling={"nodeSelector": {"pool": "none"}}), ERROR, "with pool=none", "kubectl label node NAME"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_named_with_a_remedy(way):
    check_named(*WAYS[way])


@pytest.mark.parametrize("way", OF_RUNTIMES)
def test_runtimes_that_nodes_lack_are_named_once(way):
    do, level, words, remedy = OF_RUNTIMES[way]
    seen = sound()
    do(seen)
    (one,) = found(seen, values(global__training__runtimeClassName="nvidia"))
    assert (one.level, one.object) == (level, "runtimeclass/nvidia")
    assert words in one.seen
    assert remedy in one.remedy


@pytest.mark.parametrize("nodes", [("gpu-1", "gpu-2"), None])
def test_a_runtime_that_all_nodes_have_or_none_lists_is_no_finding(nodes):
    seen = sound()
    runtime()(seen)
    if nodes:
        handlers(*nodes)(seen)
    assert found(seen, values(global__training__runtimeClassName="nvidia")) == []


@pytest.mark.parametrize("way", [
    condition("EtcdIsVoter", "True", "k3s says so of each server"),
    condition("NetworkingReady", "True"),
    change("nodes", "gpu-1", f"{LABELS}mig.config.state", "success"),
    deleted(30),
    change("namespace", NAMESPACE, "metadata annotations", {"openshift.io/node-selector": ""}),
])  # fmt: skip
def test_what_is_as_it_should_be_is_no_finding(way):
    seen = sound()
    way(seen)
    assert [one for one in found(seen) if one.level != "note"] == []


def test_a_proposal_tolerates_no_taint_that_somebody_takes_off_again():
    seen = sound()
    taints = [{"key": "node.cilium.io/agent-not-ready", "effect": "NoSchedule"}, {"key": "team", "effect": "NoExecute"}]
    of(seen, "nodes", "gpu-1")["spec"]["taints"] = taints
    assert [one["key"] for one in proposal.tolerations([of(seen, "nodes", "gpu-1")])] == ["team"]
