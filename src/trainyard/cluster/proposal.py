"""A values file that fits a cluster: operator, storage, GPUs, taints and queue, each with the reason as a comment."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import yaml

from trainyard.cluster.checks import kueue, nodes, operators, placement, volumes
from trainyard.cluster.checks.diagnosis import find_by_name, several, show
from trainyard.cluster.checks.volumes import RWO, RWX, Probe
from trainyard.cluster.demand import SMALL, Demand, at
from trainyard.cluster.survey import DEFINITIONS, ClusterSurvey

GI = Decimal(1 << 30)
EXAMPLE = {
    "global.image.registry": "registry.example.com/team",
    "global.image.tag": "0.1.0",
    "dataset.source.url": "https://data.example.com/pictures.zip",
}
YOURS = {
    "global.image.registry": "put in yours: registry and folder of the images",
    "global.image.tag": "as make push prints it",
    "dataset.source.url": "put in yours: the archive of the images",
}


class ValuesLine(NamedTuple):
    """One key of the file: its dotted path, its value, and why."""

    path: str
    value: Any
    why: str = ""


def given(demand: Demand) -> Iterator[ValuesLine]:
    """Yield what only the user knows: from the user's values, else as an example to be replaced."""
    own = {} if demand.assumed and demand.placeholder else demand.values
    named = demand.objects and at(demand.values, "global.image") is None  # by a published chart, which has its own
    for path, example in EXAMPLE.items():
        found = at(own, path)
        if named and path.startswith("global.image"):
            continue
        source = path == "dataset.source.url" and at(own, "dataset.source")
        if source and not demand.assumed:
            yield ValuesLine("dataset.source", source)
        elif at(own, "dataset.enabled") is False and path.startswith("dataset"):
            yield ValuesLine("dataset.enabled", False)
        elif found and not (demand.assumed and path.startswith("dataset")):
            yield ValuesLine(path, found)
        else:
            yield ValuesLine(path, example, YOURS[path])


def claims(survey: ClusterSurvey, probes: Sequence[Probe], several_nodes: bool) -> Iterator[ValuesLine]:
    """Yield the claims: a class that bound a probe claim, and the mode in which it did."""
    fallback = at(volumes.default(survey.of("storageclasses")) or {}, "metadata.name", "")
    able = sorted((one for one in probes if one.bound), key=lambda one: bool(one.place))  # what is shared first
    best = next((one for one in able if one.mode == RWX), None)
    if best is None and not several_nodes:
        best = next((one for one in able if one.mode == RWO), None)
    for which, size in (("data", "300Gi"), ("results", "100Gi")):
        if best:
            name = best.storage_class or fallback
            yield ValuesLine(
                f"global.storage.{which}.storageClass", name, f"bound a probe claim in {best.seconds:.1f} s"
            )
            yield ValuesLine(f"global.storage.{which}.accessModes", [best.mode])
        else:
            name = fallback or next((one["metadata"]["name"] for one in survey.of("storageclasses")), "")
            mode = RWX if several_nodes else RWO
            why = f"not proven to bind {mode}" if name else "there is none: install one, and name it here"
            yield ValuesLine(f"global.storage.{which}.storageClass", name, why)
            yield ValuesLine(f"global.storage.{which}.accessModes", [mode])
        yield ValuesLine(f"global.storage.{which}.size", size)


def tolerations(chosen: list[dict]) -> list[dict]:
    """Return tolerations of the taints that the nodes have, but for those that somebody takes off again."""
    passing = ("node.kubernetes.io/", *nodes.PASSING)
    taints = [taint for node in chosen for taint in placement.blocking_taints({}, node)
              if not taint["key"].startswith(passing)]  # fmt: skip
    found = []
    for taint in taints:
        one = {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
        if one not in found:
            found.append(one)
    return found


def usable(survey: ClusterSurvey) -> list[dict]:
    """Return the nodes that take pods."""
    return [one for one in survey.of("nodes") if placement.is_ready(one) and not one["spec"].get("unschedulable")]


def gpu_nodes(survey: ClusterSurvey) -> tuple[str, int, list[dict]]:
    """Return the GPU resource that most nodes offer, how many of it a node has, and the nodes that have as many."""
    by: dict[tuple[str, int], list[dict]] = {}
    for node in usable(survey):
        for resource, count in nodes.gpus(node).items():
            by.setdefault((resource, count), []).append(node)
    if not by:
        return "", 0, []
    (resource, count), found = max(by.items(), key=lambda one: (one[0][1] * len(one[1]), one[0]))
    return resource, count, found


def training(survey: ClusterSurvey, demand: Demand, count: int) -> Iterator[ValuesLine]:
    """Yield nodes, GPUs and what their pods request; `count` of nodes, or 0 for as many as there are."""
    resource, each, found = gpu_nodes(survey)
    if not each:
        yield ValuesLine("global.training.nodes", count or 1)
        yield ValuesLine("global.training.processesPerNode", 1, "no node offers GPUs: this trains on CPUs")
        for key, value in SMALL.items():
            yield ValuesLine(f"global.training.{key}", value)
        return
    yield ValuesLine("global.training.nodes", count or len(found), f"{len(found)} nodes have {each} {resource}")
    yield ValuesLine("global.training.gpusPerNode", nodes.distinct_gpus(resource, each, found))
    yield ValuesLine("global.training.gpuResource", resource)
    least = {
        name: min(placement.allocatable(node).get(name, Decimal(0)) for node in found) for name in ("cpu", "memory")
    }
    if least["cpu"] * Decimal("0.8") < each or least["memory"] * Decimal("0.8") < (16 + 4 * each) * GI:
        cpu, memory = max(1, int(least["cpu"] * Decimal("0.7"))), max(1, int(least["memory"] * Decimal("0.7") / GI))
        why = f"a node has {show(least['cpu'])} CPUs and {show(least['memory'], 'memory')}"
        yield ValuesLine("global.training.resources", {"requests": {"cpu": str(cpu), "memory": f"{memory}Gi"}}, why)
        yield ValuesLine("global.training.shmSize", f"{max(1, memory // 4)}Gi")
    if held := tolerations(found):
        yield ValuesLine("global.scheduling.tolerations", held, "the taints of these nodes")
    kinds = {
        one["metadata"].get("labels", {}).get("nvidia.com/gpu.product", "") for one in usable(survey) if nodes.gpus(one)
    }
    here = {one["metadata"].get("labels", {}).get("nvidia.com/gpu.product", "") for one in found}
    if len(kinds) > 1 and len(here) == 1 and "" not in here:
        yield ValuesLine(
            "global.scheduling.nodeSelector", {"nvidia.com/gpu.product": next(iter(here))}, "GPUs of one kind"
        )
    offers = [
        {key for key, number in placement.allocatable(one).items() if number and nodes.RDMA.match(key)} for one in found
    ]
    rdma = sorted(set.intersection(*offers))
    if rdma and survey.enforced_level() == "privileged":  # its pods lock memory, which the other levels refuse
        yield ValuesLine("global.training.rdma.resource", rdma[0], f"the nodes offer {several(rdma)}")
        if rdma[0].endswith("/efa"):  # an interface each, of which a pod takes all; of others a pod shares one
            count = int(min(placement.allocatable(one)[rdma[0]] for one in found))
            yield ValuesLine("global.training.rdma.count", count, "all of a node")


def operator(survey: ClusterSurvey, demand: Demand) -> Iterator[ValuesLine]:
    """Yield the operator that is there, and the form of its job that the namespace admits."""
    known = {crd["metadata"]["name"] for crd in survey.of(DEFINITIONS)}
    chosen, why = "pytorchjob", f"install it: {operators.PYTORCH.install}"
    if there := operators.serving(survey, known):
        chosen, *others = there
        meta, one = there[chosen]["metadata"], operators.OPERATOR_OF[chosen]
        why = f"{one.name} {operators.number(there[chosen])}".strip() + f" runs in namespace {meta['namespace']}"
        if others:
            why += f"; or {' or '.join(others)}, which runs here too: docs/operators.md says which to take"
    yield ValuesLine("global.training.operator", chosen, why)
    if chosen == "trainjob" and (version := operators.version_to_set(survey)):
        yield ValuesLine("trainjob.version", version, "the cluster's")
    level = survey.enforced_level()
    for thing in operators.find_deployments(operators.PYTORCH, survey.of("deployments")):
        line = " ".join(operators.words(thing))
        if chosen == "pytorchjob" and level == "restricted" and "--pytorch-init-container-template-file" not in line:
            yield ValuesLine("pytorchjob.form", "elastic", "the namespace refuses the operator's init container")


def queue(survey: ClusterSurvey) -> Iterator[ValuesLine]:
    """Yield a queue of the namespace that lets jobs in."""
    for local in survey.of("localqueues"):
        cluster = find_by_name(survey.of("clusterqueues"), local["spec"].get("clusterQueue", ""))
        if not [one for thing in filter(None, (local, cluster)) for one in kueue.check_queue_state(thing)]:
            yield ValuesLine("global.scheduling.queue", local["metadata"]["name"], "Kueue's queue of this namespace")
            return


def write(survey: ClusterSurvey, demand: Demand, probes: Sequence[Probe], count: int = 0) -> str:
    """Return the file's text."""
    lines = list(training(survey, demand, count))
    number = next(one.value for one in lines if one.path == "global.training.nodes")
    lines = [*given(demand), *claims(survey, probes, number > 1), *operator(survey, demand), *lines, *queue(survey)]
    head = (
        f"# Values that fit this cluster (Kubernetes {survey.version}), for namespace {survey.namespace}; by doctor.\n"
        f"# trainyard up run -n {survey.namespace} -f THIS-FILE\n"
    )
    return head + "\n".join(laid_out(lines)) + "\n"


def laid_out(lines: list[ValuesLine]) -> Iterator[str]:
    """Yield the lines of a YAML file in which keys that belong together stand together."""
    order = (
        *("global.image", "global.storage", "global.scheduling", "global.training"),
        *("dataset", "pytorchjob", "trainjob"),
    )
    ranked = sorted(lines, key=lambda one: next(i for i, prefix in enumerate(order) if one.path.startswith(prefix)))
    before: list[str] = []
    for path, value, why in ranked:
        *parents, last = path.split(".")
        shared = 0
        while shared < min(len(parents), len(before)) and parents[shared] == before[shared]:
            shared += 1
        for depth in range(shared, len(parents)):
            yield f"{'  ' * depth}{parents[depth]}:"
        text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()
        yield f"{'  ' * len(parents)}{last}: {text}" + (f"  # {why}" if why else "")
        before = parents
