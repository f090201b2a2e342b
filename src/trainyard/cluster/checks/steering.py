"""Rules that place a run's pods beside its own values: RuntimeClasses and the namespace's selector."""

from collections.abc import Iterator

from trainyard.cluster.checks import placement
from trainyard.cluster.checks.diagnosis import ERROR, WARNING, Diagnosis, several
from trainyard.cluster.demand import Demand, PodGroup, at
from trainyard.cluster.survey import ClusterSurvey

# Annotations of a namespace by which its pods get a node selector: of the admission plugin PodNodeSelector, which not
# every cluster runs, and of OpenShift
SELECTORS = ("scheduler.alpha.kubernetes.io/node-selector", "openshift.io/node-selector")


def find_nodes(group: PodGroup, nodes: list[dict], **further: object) -> list[dict]:
    """Return the nodes on which pods of a group may be placed, with further keys of their spec."""
    return placement.fitting_nodes({**group.spec, **further}, nodes)


def parse_selector(text: str) -> dict[str, str]:
    """Return the labels of a selector that is written as a=b,c=d."""
    pairs = [part.partition("=") for part in text.split(",") if "=" in part]
    return {key.strip(): value.strip() for key, _, value in pairs}


def add_labels(group: PodGroup, labels: dict[str, str]) -> dict[str, str]:
    """Return a group's node selector with further labels."""
    return {**(group.spec.get("nodeSelector") or {}), **labels}


def check_namespace(demand: Demand, space: dict | None, nodes: list[dict]) -> Iterator[Diagnosis]:
    """Name a selector of the namespace that leaves the run's pods no node."""
    notes, name = at(space or {}, "metadata.annotations", {}), at(space or {}, "metadata.name", "")
    for key in SELECTORS:
        labels = parse_selector(notes.get(key) or "")
        for group in demand.groups if labels else []:
            if find_nodes(group, nodes) and not find_nodes(group, nodes, nodeSelector=add_labels(group, labels)):
                seen = f"{key} sends pods to nodes with {notes[key]}: none of them is for the {group.name}"
                remedy = f"label nodes so, name another namespace, or kubectl annotate namespace {name} {key}-"
                yield Diagnosis(WARNING, f"namespace/{name}", seen, remedy)
                break


def check_handlers(name: str, handler: str, nodes: list[dict]) -> Iterator[Diagnosis]:
    """Name nodes whose container runtime lacks a handler. A kubelet lists them from 1.30 on; else nothing is said."""
    listed = {
        one["metadata"]["name"]: {each.get("name", "") for each in one["status"]["runtimeHandlers"]}
        for one in nodes
        if one.get("status", {}).get("runtimeHandlers")
    }
    lacking = sorted(node for node, known in listed.items() if handler not in known)
    if lacking:
        seen = f"the container runtime of {several(lacking)} has no handler {handler}"
        remedy = "install it there (NVIDIA's container toolkit, by the GPU operator), or correct runtimeClassName"
        level = ERROR if len(lacking) == len(nodes) else WARNING
        yield Diagnosis(level, f"runtimeclass/{name}", seen, remedy)


def check_runtimes(demand: Demand, classes: list[dict], nodes: list[dict]) -> Iterator[Diagnosis]:
    """Name RuntimeClasses that leave pods no node, and handlers that are missing where pods may be placed."""
    groups = {group.spec["runtimeClassName"]: group for group in demand.groups if group.spec.get("runtimeClassName")}
    for thing in classes:
        name = thing["metadata"]["name"]
        group = groups.get(name)
        if group is None or not find_nodes(group, nodes):
            continue
        labels = at(thing, "scheduling.nodeSelector", {})
        tolerations = [*(group.spec.get("tolerations") or []), *at(thing, "scheduling.tolerations", [])]
        fits = find_nodes(group, nodes, nodeSelector=add_labels(group, labels), tolerations=tolerations)
        if not fits:
            text = ", ".join(f"{key}={value}" for key, value in labels.items())
            seen = f"it sends pods to nodes with {text}: none of them is for the {group.name}"
            remedy = f"kubectl label node NAME {text}, or correct its scheduling"
            yield Diagnosis(ERROR, f"runtimeclass/{name}", seen, remedy)
        yield from check_handlers(name, thing.get("handler", ""), fits)


def examine(demand: Demand, survey: ClusterSurvey, nodes: list[dict]) -> Iterator[Diagnosis]:
    """Name rules that leave the run's pods no node, where the run itself fits some."""
    yield from check_namespace(demand, survey.space(), nodes)
    yield from check_runtimes(demand, survey.of("runtimeclasses"), nodes)
