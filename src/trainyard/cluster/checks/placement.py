"""Room for pods on nodes: the scheduler's decision, from requests, labels, taints and conditions."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from trainyard.cluster.checks.diagnosis import amount, show

Amounts = dict[str, Decimal]
KEEPS_OFF = ("NoSchedule", "NoExecute")
# Set by the node controller for what a condition says already
OWN_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/unschedulable")


def conditions(node: dict) -> dict[str, str]:
    """Return the status of a node's conditions, by type."""
    return {one["type"]: one["status"] for one in node.get("status", {}).get("conditions") or []}


def is_ready(node: dict) -> bool:
    """Whether a node's kubelet says that it is ready."""
    return conditions(node).get("Ready") == "True"


def allocatable(node: dict) -> Amounts:
    """Return what a node offers to pods."""
    return {name: amount(text) for name, text in (node.get("status", {}).get("allocatable") or {}).items()}


def container_requests(container: Mapping) -> Amounts:
    """Return what a container requests; a limit without a request counts as one, as Kubernetes takes it."""
    resources = container.get("resources") or {}
    both = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return {name: amount(text) for name, text in both.items()}


def requests(spec: Mapping) -> Amounts:
    """Return what a pod requests: the sum of its containers and sidecars, or of the largest init container."""
    total: Amounts = defaultdict(Decimal)
    most: Amounts = defaultdict(Decimal)
    for one in spec.get("initContainers") or []:
        own = container_requests(one)
        if one.get("restartPolicy") == "Always":
            for name, number in own.items():
                total[name] += number
                most[name] = max(most[name], total[name])
        else:
            for name, number in own.items():
                most[name] = max(most[name], total[name] + number)
    for one in spec.get("containers") or []:
        for name, number in container_requests(one).items():
            total[name] += number
    found = {name: max(total[name], most[name]) for name in total | most}
    for name, text in (spec.get("overhead") or {}).items():
        found[name] = found.get(name, Decimal(0)) + amount(text)
    return {name: number for name, number in found.items() if number}


def usage_by_node(pods: Iterable[dict]) -> dict[str, Amounts]:
    """Return what pods that have not ended request of each node, with their number under `pods`."""
    found: dict[str, Amounts] = defaultdict(lambda: defaultdict(Decimal))
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if not node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        for name, number in (requests(pod["spec"]) | {"pods": Decimal(1)}).items():
            found[node][name] += number
    return found


def tolerates(tolerations: Iterable[Mapping], taint: Mapping) -> bool:
    """Whether one of a pod's tolerations is for a taint."""
    for one in tolerations:
        key, value = one.get("key", ""), one.get("value", "")
        if one.get("effect") not in (None, "", taint.get("effect")):
            continue
        if one.get("operator", "Equal") == "Exists":
            if key in ("", taint["key"]):
                return True
        elif key == taint["key"] and value == taint.get("value", ""):
            return True
    return False


def blocking_taints(spec: Mapping, node: dict) -> list[dict]:
    """Return a node's taints that keep a pod off it, without those that repeat a condition."""
    taints = [one for one in node["spec"].get("taints") or [] if one.get("effect") in KEEPS_OFF]
    own = spec.get("tolerations") or []
    return [one for one in taints if one["key"] not in OWN_TAINTS and not tolerates(own, one)]


def matches(expression: Mapping, labels: Mapping[str, str]) -> bool:
    """Whether labels fit one expression of a selector."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    there, value = key in labels, labels.get(key, "")
    if operator in ("Gt", "Lt"):
        try:
            return there and (int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0]))
        except ValueError:
            return False
    return {
        "In": there and value in values,
        "NotIn": value not in values or not there,
        "Exists": there,
        "DoesNotExist": not there,
    }.get(operator, False)


def selects(selector: Mapping | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector of the API takes these labels; an empty one takes all, none takes nothing."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        matches(one, labels) for one in selector.get("matchExpressions") or []
    )


def chosen(spec: Mapping, node: dict) -> bool:
    """Whether a pod's nodeSelector and required node affinity take a node."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms is None:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(matches(one, labels) for one in term.get("matchExpressions") or [])
        and all(matches(one, fields) for one in term.get("matchFields") or [])
        and (term.get("matchExpressions") or term.get("matchFields"))
        for term in terms
    )


def hindrances(spec: Mapping, node: dict) -> Iterator[str]:
    """Yield what keeps a pod off a node whatever else runs there, in the scheduler's words."""
    if not is_ready(node):
        yield "not ready"
    if node["spec"].get("unschedulable"):
        yield "unschedulable (cordoned)"
    if not chosen(spec, node):
        yield "didn't match Pod's node affinity/selector"
    for taint in blocking_taints(spec, node):
        value = f"={taint['value']}" if taint.get("value") else ""
        yield f"had untolerated taint {taint['key']}{value}:{taint['effect']}"


def room(wanted: Amounts, offered: Mapping[str, Decimal], taken: Mapping[str, Decimal]) -> int:
    """Return how many pods a node has room for."""
    each = wanted | {"pods": Decimal(1)}
    offers = {"pods": Decimal(110)} | dict(offered)
    return max(0, min(int((offers.get(name, Decimal(0)) - taken.get(name, Decimal(0))) // need)
                      for name, need in each.items()))  # fmt: skip


def short(wanted: Amounts, offered: Mapping[str, Decimal]) -> list[str]:
    """Return the resources of which a node offers less than one pod requests, with both amounts."""
    return [
        f"{name}: {show(offered.get(name, Decimal(0)), name)} of {show(need, name)}"
        for name, need in sorted(wanted.items())
        if offered.get(name, Decimal(0)) < need
    ]


def fitting_nodes(spec: Mapping, nodes: Iterable[dict]) -> list[dict]:
    """Return the nodes on which a pod may be placed, when nothing else runs."""
    wanted = requests(spec)
    return [one for one in nodes if not list(hindrances(spec, one)) and not short(wanted, allocatable(one))]


def devices(wanted: Amounts) -> list[str]:
    """Return the extended resources among what a pod requests, such as GPUs."""
    return sorted(name for name in wanted if "/" in name)


def fit(spec: Mapping, nodes: list[dict], taken: Mapping[str, Amounts]) -> tuple[int, int, Counter[str]]:
    """Return for how many such pods the nodes have room: when nothing else runs, and now; and why nodes are left out.

    Where some nodes offer the devices that a pod requests, nothing else is said of the nodes that do not.
    """
    wanted, ever, now, why = requests(spec), 0, 0, Counter[str]()
    lacks = [next((name for name in devices(wanted) if not allocatable(node).get(name)), "") for node in nodes]
    for node, without in zip(nodes, lacks, strict=True):
        reasons, offered = list(hindrances(spec, node)), allocatable(node)
        lacking = short(wanted, offered)
        if without and not all(lacks):
            why[f"without {without}"] += 1
        else:
            why.update(reasons or [f"Insufficient {one}" for one in lacking])
        if not reasons and not lacking:
            ever += room(wanted, offered, {})
            now += room(wanted, offered, taken.get(node["metadata"]["name"], {}))
    return ever, now, why
