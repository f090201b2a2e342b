"""Nodes: whether they are ready, what GPUs and RDMA devices they offer, and whether a run finds room."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal

from trainyard.cluster.checks import node_faults, placement, steering
from trainyard.cluster.checks.diagnosis import ERROR, NOTE, WARNING, Check, Diagnosis, amount, check, several, show
from trainyard.cluster.demand import Demand, PodGroup, at
from trainyard.cluster.survey import ClusterSurvey

GPU = re.compile(
    r"^(nvidia\.com/(gpu|mig-[\w.-]+)(\.shared)?|amd\.com/gpu|gpu\.intel\.com/(i915|xe)|habana\.ai/gaudi)$"
)
RDMA = re.compile(
    r"^(rdma/.+|vpc\.amazonaws\.com/efa|nvidia\.com/.*(rdma|sriov|ib).*|.*/(hca|infiniband)[\w-]*)$", re.I
)
PRESSURE = {
    "DiskPressure": "free its disk, or give it a larger one",
    "MemoryPressure": "end what uses its memory",
    "PIDPressure": "end what has so many processes",
    "NetworkUnavailable": "see the network plugin's pod on it: kubectl -n kube-system get pods -o wide",
}
# Labels by which clouds and device plugins' own helpers say that a node has GPUs, and the resource of their plugin
LABELLED = {
    "nvidia.com/gpu.present": "nvidia.com/gpu",
    "feature.node.kubernetes.io/pci-10de.present": "nvidia.com/gpu",
    "feature.node.kubernetes.io/pci-0302_10de.present": "nvidia.com/gpu",
    "cloud.google.com/gke-accelerator": "nvidia.com/gpu",
    "k8s.amazonaws.com/accelerator": "nvidia.com/gpu",
    "kubernetes.azure.com/accelerator": "nvidia.com/gpu",
    "feature.node.kubernetes.io/pci-1002.present": "amd.com/gpu",
}
# Taints that somebody takes off when a node is ready or sound again: to tolerate them helps nobody
PASSING = {
    "node.kubernetes.io/disk-pressure": "free the disks of these nodes (kubectl describe node)",
    "node.kubernetes.io/memory-pressure": "end what uses the memory of these nodes (kubectl describe node)",
    "node.kubernetes.io/pid-pressure": "end what has so many processes on these nodes (kubectl describe node)",
    "node.kubernetes.io/network-unavailable": "see the network plugin's pods: kubectl -n kube-system get pods -o wide",
    "node.kubernetes.io/out-of-service": "bring these nodes back, or add others",
    "node.cloudprovider.kubernetes.io/uninitialized": "start the cloud's controller manager, which takes it off",
    "node.cilium.io/agent-not-ready": "start Cilium's agent on these nodes: kubectl -n kube-system get pods -o wide",
    "ToBeDeletedByClusterAutoscaler": "wait for new nodes, or raise the least size of their pool",
    "karpenter.sh/": "wait for the nodes that replace these (kubectl get nodeclaims)",
}
PLUGIN = re.compile(
    r"device-plugin|gpu-operator|nvidia|amdgpu|rdma|sriov|efa|csi|cni|calico|cilium|flannel|kube-proxy|dns"
)


def name(node: dict) -> str:
    """Return a node as kubectl takes it."""
    return f"node/{node['metadata']['name']}"


def gpus(node: dict, part: str = "allocatable") -> dict[str, int]:
    """Return a node's GPUs by resource, as it offers them or as it has them."""
    offered = node.get("status", {}).get(part) or {}
    return {key: int(amount(text)) for key, text in offered.items() if GPU.match(key) and amount(text)}


def has_gpu(node: dict) -> bool:
    """Whether a node has GPUs, healthy or not, or says so by a label."""
    labels = node["metadata"].get("labels") or {}
    return bool(gpus(node) or gpus(node, "capacity")) or any(labels.get(key) not in (None, "false") for key in LABELLED)


def check_health(node: dict) -> Iterator[Diagnosis]:
    """Name what is wrong with a node, whatever runs."""
    label, held = name(node), {one["type"]: one for one in node.get("status", {}).get("conditions") or []}
    ready = held.get("Ready", {})
    if ready.get("status") != "True":
        said = " ".join(filter(None, (ready.get("reason"), ready.get("message")))) or "its kubelet has said nothing"
        yield Diagnosis(WARNING, label, f"it is not ready: {said}", f"see its kubelet: kubectl describe {label}")
    if node["spec"].get("unschedulable"):
        target = node["metadata"]["name"]
        yield Diagnosis(WARNING, label, "it is cordoned: no new pod is placed on it", f"kubectl uncordon {target}")
    for kind, remedy in PRESSURE.items():
        if held.get(kind, {}).get("status") == "True":
            seen = f"it has {kind}: {held[kind].get('message', '')}".rstrip(": ")
            yield Diagnosis(WARNING, label, seen, f"{remedy} (kubectl describe {label})")


def check_devices(node: dict, resources: Iterable[str], *, plugged: bool) -> Iterator[Diagnosis]:
    """Name devices that a node has and does not offer, and GPUs that no device plugin announces, if one must."""
    status, labels = node.get("status", {}), node["metadata"].get("labels") or {}
    has, offers = status.get("capacity") or {}, status.get("allocatable") or {}
    for resource in sorted(set(resources) & {*has, *offers}):
        whole, healthy = amount(has.get(resource, 0)), amount(offers.get(resource, 0))
        if healthy < whole:
            seen = f"{show(whole - healthy)} of its {show(whole)} {resource} are unhealthy"
            remedy = "see the driver and its device plugin's log (nvidia-smi, dmesg | grep Xid), then cordon the node"
            yield Diagnosis(WARNING, name(node), seen, remedy)
    said = {LABELLED[key] for key in LABELLED if labels.get(key) not in (None, "false")} if plugged else set()
    announced = {key for key in (*has, *offers) if GPU.match(key) and amount(has.get(key, offers.get(key, 0)))}
    for resource in sorted(said):
        vendor = resource.partition("/")[0]
        if not any(key.startswith(vendor) for key in announced):
            seen = f"its labels say that it has GPUs, and it offers no {resource}"
            remedy = f"install or repair the device plugin of {vendor} on it (kubectl get daemonset -A)"
            yield Diagnosis(WARNING, name(node), seen, remedy)
    counted = labels.get("nvidia.com/gpu.count", "")
    here = int(amount(has.get("nvidia.com/gpu", 0)))
    if counted.isdigit() and 0 < here < int(counted) and "nvidia.com/gpu.replicas" not in labels:
        seen = f"it has {counted} GPUs by its labels, and {here} nvidia.com/gpu"
        yield Diagnosis(WARNING, name(node), seen, "see which GPU its driver has lost: nvidia-smi on the node")


def distinct_gpus(resource: str, count: int, nodes: list[dict]) -> int:
    """Return how many GPUs a pod may ask of nodes that offer so many: each process has one of its own."""
    shared = ".shared" in resource or any(count_sharing(one) > 1 for one in nodes)
    return min(count, 1) if shared or "mig-" in resource else count


def count_sharing(node: dict) -> int:
    """Return how often a node offers each of its GPUs, by time slicing or MPS."""
    times = (node["metadata"].get("labels") or {}).get("nvidia.com/gpu.replicas", "1")
    return int(times) if times.isdigit() else 1


def check_gpu_sharing(node: dict) -> Iterator[Diagnosis]:
    """Say that a node offers each of its GPUs several times: two processes of a run may then get the same one."""
    if (times := count_sharing(node)) > 1:
        seen = f"it offers each GPU {times} times (time slicing or MPS): NCCL refuses two processes on one GPU"
        yield Diagnosis(
            WARNING, name(node), seen, "take sharing out of its device plugin, or choose others by nodeSelector"
        )


def check_versions(node: dict, server: str) -> Iterator[Diagnosis]:
    """Name a CPU or a kubelet that the images and the chart do not work with."""
    info = node.get("status", {}).get("nodeInfo") or {}
    if info.get("architecture") not in (None, "", "amd64"):
        seen = f"its CPU is {info['architecture']}, and the images are amd64"
        remedy = "set global.scheduling.nodeSelector: {kubernetes.io/arch: amd64}, or build the images for it"
        yield Diagnosis(WARNING, name(node), seen, remedy)
    own, there = (re.match(r"v?1\.(\d+)", text) for text in (info.get("kubeletVersion", ""), server))
    if own and int(own[1]) < 29:
        seen = f"its kubelet is {info['kubeletVersion']}, and native sidecars need 1.29"
        yield Diagnosis(WARNING, name(node), seen, "update the node (docs/compatibility.md)")
    elif own and there and not 0 <= int(there[1]) - int(own[1]) <= 3:
        seen = (
            f"its kubelet is {info['kubeletVersion']}, and the API server {server}: Kubernetes supports 3 minors back"
        )
        yield Diagnosis(WARNING, name(node), seen, "update the node")


def check_gpu_models(nodes: list[dict]) -> Iterator[Diagnosis]:
    """Say that GPUs differ: every step waits for the slowest."""
    kinds = Counter(one["metadata"].get("labels", {}).get("nvidia.com/gpu.product", "") for one in nodes if gpus(one))
    named = sorted(kind for kind in kinds if kind)
    if len(named) > 1:
        seen = f"GPUs of several kinds: {several(named)}; a run on both waits for the slower"
        remedy = f"set global.scheduling.nodeSelector: {{nvidia.com/gpu.product: {named[0]}}}"
        yield Diagnosis(NOTE, "nodes", seen, remedy)


def check_daemons(daemonsets: list[dict]) -> Iterator[Diagnosis]:
    """Name drivers, device plugins and network plugins that do not run on all of their nodes."""
    for thing in daemonsets:
        status, meta = thing.get("status", {}), thing["metadata"]
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        if ready < wanted and (PLUGIN.search(meta["name"]) or meta["namespace"] == "kube-system"):
            seen = f"{ready} of {wanted} pods are ready: nodes lack what it brings"
            remedy = f"kubectl -n {meta['namespace']} describe daemonset {meta['name']}"
            yield Diagnosis(WARNING, f"daemonset/{meta['name']}", seen, remedy)


def remedy(reasons: Counter[str], group: PodGroup, nodes: list[dict], offered: set[str]) -> str:
    """Return what to do for pods that find no node: the reason that most nodes have, and that has a remedy, decides."""
    for resource in sorted(placement.requests(group.spec)):
        if GPU.match(resource) and resource not in offered:
            if offered:
                return f"set global.training.gpuResource: {min(offered)}, the resource that nodes offer"
            return f"add nodes with {resource}, or install its device plugin; without GPUs set gpusPerNode: 0"
    answers = (answer(text, group, nodes) for text, _ in reasons.most_common())
    return next(filter(None, answers), "add nodes, or lower global.training.nodes")


def answer(reason: str, group: PodGroup, nodes: list[dict]) -> str:
    """Return what to do about one reason; empty for one that nothing but more nodes helps against."""
    if found := re.match(r"had untolerated taint ([^=:]+)(?:=([^:]*))?:(\w+)", reason):
        if passing := next((text for begins, text in PASSING.items() if found[1].startswith(begins)), ""):
            return passing
        which = f"operator: Equal, value: {found[2]}" if found[2] else "operator: Exists"
        return f"set global.scheduling.tolerations: [{{key: {found[1]}, {which}, effect: {found[3]}}}]"
    if found := re.match(r"Insufficient ([^:]+): ", reason):
        return lower(found[1], group, nodes)
    plain = {
        "didn't match": "correct global.scheduling.nodeSelector or affinity: kubectl get nodes --show-labels",
        "unschedulable": f"kubectl uncordon {cordoned_nodes(nodes)}",
        "not ready": "bring nodes back: kubectl describe node",
    }
    return next((text for begins, text in plain.items() if reason.startswith(begins)), "")


def lower(resource: str, group: PodGroup, nodes: list[dict]) -> str:
    """Return how to ask for less of a resource."""
    if GPU.match(resource):
        return f"set global.training.gpusPerNode to what a node has, {most(nodes, resource)} at most"
    if RDMA.match(resource):
        return "correct global.training.rdma.resource and count (kubectl describe node), or leave it empty"
    key = "global.training.resources" if group.trains else f"the resources of the {group.name}"
    return f"lower {resource} under {key}: a node has {most(nodes, resource)} at most"


def most(nodes: list[dict], resource: str) -> str:
    """Return the most of a resource that one node offers."""
    return show(
        max((placement.allocatable(node).get(resource, Decimal(0)) for node in nodes), default=Decimal(0)), resource
    )


def cordoned_nodes(nodes: list[dict]) -> str:
    """Return the names of cordoned nodes."""
    return " ".join(sorted(one["metadata"]["name"] for one in nodes if one["spec"].get("unschedulable")))


def alike(groups: list[PodGroup]) -> list[PodGroup]:
    """Return groups of pods, those of one job that ask the same, as a Master and its Workers do, as one group."""
    found: list[PodGroup] = []
    for group in groups:
        mine = (group.owner["metadata"]["name"], placement.requests(group.spec))
        like = next((i for i, one in enumerate(found) if one.trains and group.trains
                     and (one.owner["metadata"]["name"], placement.requests(one.spec)) == mine), None)  # fmt: skip
        if like is None:
            found.append(group._replace(name=group.owner["kind"].lower()) if group.trains else group)
        else:
            found[like] = found[like]._replace(pods=found[like].pods + group.pods)
    return found


def would_help(group: PodGroup, nodes: list[dict], reasons: Counter[str]) -> bool:
    """Whether further nodes would take a group's pods: not where those that have its devices keep it off by a taint."""
    wanted = placement.devices(placement.requests(group.spec))
    if wanted and not any(all(placement.allocatable(node).get(key) for key in wanted) for node in nodes):
        return True
    told = [text for text, _ in reasons.most_common() if not text.startswith("without ")]
    return not told or not told[0].startswith("had untolerated taint")


def check_room(demand: Demand, nodes: list[dict], pods: list[dict], adds: str) -> Iterator[Diagnosis]:
    """Name pods of a run for which there are too few nodes, ever or now; `adds`: what adds nodes, if anything."""
    taken, offered = placement.usage_by_node(pods), {key for node in nodes for key in gpus(node)}
    for group in alike(demand.groups):
        ever, now, why = placement.fit(group.spec, nodes, taken)
        wanted = ", ".join(f"{show(number, key)} {key}" for key, number in placement.requests(group.spec).items())
        if ever < group.pods:
            reasons = "; ".join(f"{count} {text}" for text, count in why.most_common(4)) or "all fit"
            seen = f"room for {ever} of {group.pods} pods that request {wanted}: of {len(nodes)} nodes {reasons}"
            level, instead = ERROR, remedy(why, group, nodes, offered)
            if adds and would_help(group, nodes, why):
                level, instead = WARNING, f"see that a pool of {adds} has such nodes; else {instead}"
                seen += f"; {adds} may add nodes"
            yield Diagnosis(level, group.name, seen, instead)
        elif now < group.pods and not demand.assumed:
            seen = f"room for {now} of {group.pods} pods now, for {ever} when nothing else runs ({wanted} each)"
            yield Diagnosis(NOTE, group.name, seen, "wait until other pods end, or run in a queue (docs/kueue.md)")
    yield from check_spread(demand, nodes, WARNING if adds else ERROR)


def check_spread(demand: Demand, nodes: list[dict], level: str) -> Iterator[Diagnosis]:
    """Name spread constraints and anti-affinity that ask for more nodes than fit."""
    for group in alike(demand.training):
        able = [one for one in nodes if not list(placement.hindrances(group.spec, one))]
        apart = ((group.spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
        strict = [one for one in group.spec.get("topologySpreadConstraints") or []
                  if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"]  # fmt: skip
        for one in strict:
            key = one["topologyKey"]
            if able and not any(key in (node["metadata"].get("labels") or {}) for node in able):
                yield Diagnosis(ERROR, group.name, f"no node has the label {key}, over which pods are spread",
                                "label the nodes, or set whenUnsatisfiable: ScheduleAnyway")  # fmt: skip
        alone = [one for one in apart or [] if one.get("topologyKey") == "kubernetes.io/hostname"]
        if alone and len(able) < group.pods:
            seen = f"{group.pods} pods may not share a node, and {len(able)} nodes fit"
            yield Diagnosis(level, group.name, seen, "relax global.scheduling.affinity, or lower global.training.nodes")


def check_fabric(demand: Demand, nodes: list[dict]) -> Iterator[Diagnosis]:
    """Say that RDMA is offered, and the run of several nodes does not ask for it."""
    offered = sorted(
        {key for node in nodes for key, number in placement.allocatable(node).items() if number and RDMA.match(key)}
    )
    asked = {key for group in demand.training for key in placement.requests(group.spec)}
    gpu = any(GPU.match(key) for key in asked) and not at(demand.values, "global.training.rdma.by", "")
    if offered and gpu and demand.spreads and not asked & set(offered):
        seen = f"nodes offer {several(offered)}, and the run does not ask for it: NCCL uses TCP"
        yield Diagnosis(NOTE, "rdma", seen, f"set global.training.rdma.resource: {offered[0]}")


def summary(nodes: list[dict]) -> str:
    """Return how many nodes and GPUs there are."""
    total: Counter[str] = Counter()
    for node in nodes:
        total.update(gpus(node))
    ready = sum(placement.is_ready(node) and not node["spec"].get("unschedulable") for node in nodes)
    gpu = ", ".join(
        f"{count} {key} on {sum(key in gpus(node) for node in nodes)} nodes" for key, count in sorted(total.items())
    )
    return f"{ready} of {len(nodes)} nodes take pods, {gpu or 'no GPUs'}"


def examine(survey: ClusterSurvey, demand: Demand) -> Check:
    """Check the nodes, and whether the run finds room on them."""
    if "nodes" in survey.unseen:
        return check("nodes", unproven=["nodes: " + survey.unseen["nodes"]])
    linux = [one for one in survey.of("nodes") if at(one, "status.nodeInfo.operatingSystem") != "windows"]
    if not linux:
        return check("nodes", wrong=[Diagnosis(ERROR, "nodes", "the cluster has no nodes", "add nodes to the cluster")])
    resources = {key for node in linux for key in (node.get("status", {}).get("capacity") or {})
                 if GPU.match(key) or RDMA.match(key)}  # fmt: skip
    asked_gpus = {key for group in demand.training for key in placement.requests(group.spec) if GPU.match(key)}
    plugged = bool(asked_gpus) or not at(demand.values, "global.training.gpusPerNode", 0)  # else they come by claims
    wrong: list[Diagnosis] = []
    for node in linux:
        wrong += [
            *check_health(node),
            *check_devices(node, resources, plugged=plugged),
            *check_gpu_sharing(node),
            *check_versions(node, survey.version),
        ]
    wrong += [*node_faults.examine(survey, linux), *steering.examine(demand, survey, linux)]
    wrong += [*check_gpu_models(linux), *check_daemons(survey.of("daemonsets")), *check_fabric(demand, linux)]
    lacking = list(check_room(demand, linux, survey.of("pods"), survey.autoscaler()))
    asked = f"room for {demand.said}" if demand.objects and not lacking else ""
    unproven = [f"free room: pods: {survey.unseen['pods']}"] if "pods" in survey.unseen else []
    return check("nodes", [summary(linux), asked], [*wrong, *lacking], unproven)
