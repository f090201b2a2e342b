"""Kueue's ResourceFlavors: whether the nodes behind them are there, and one of them takes each group of pods whole."""

from collections.abc import Iterator
from decimal import Decimal

from trainyard.cluster.checks import placement
from trainyard.cluster.checks.diagnosis import ERROR, WARNING, Diagnosis, amount, several, show
from trainyard.cluster.demand import PodGroup
from trainyard.cluster.survey import ClusterSurvey


def check_nodes(cluster: dict, survey: ClusterSurvey, groups: list[PodGroup]) -> Iterator[Diagnosis]:
    """Name flavors that are missing, which stops the queue, and those without nodes for the groups.

    The latter stop a run where none of the other flavors of its resources has nodes.
    """
    kinds = {one["metadata"]["name"]: one for one in survey.of("resourceflavors")}
    for part in cluster["spec"].get("resourceGroups") or []:
        names = [one["name"] for one in part["flavors"]]
        for name in (one for one in names if one not in kinds):
            seen = f"it names the flavor {name}, which does not exist"
            yield Diagnosis(ERROR, f"clusterqueue/{cluster['metadata']['name']}", seen, f"create ResourceFlavor {name}")
        covered = set(part.get("coveredResources") or [])
        mine = [one for one in groups if covered & set(placement.requests(one.spec))]
        each = [list(check_flavor(kinds[name], survey, mine)) for name in names if name in kinds and mine]
        for wrong in each:
            yield from wrong if all(each) else (one._replace(level=WARNING) for one in wrong)


def check_flavor(flavor: dict, survey: ClusterSurvey, groups: list[PodGroup]) -> Iterator[Diagnosis]:
    """Name a flavor whose labels no node has, or whose nodes have taints that nobody tolerates."""
    label, spec = f"resourceflavor/{flavor['metadata']['name']}", flavor.get("spec") or {}
    wanted, nodes = spec.get("nodeLabels") or {}, survey.of("nodes")
    fits = [one for one in nodes if wanted.items() <= (one["metadata"].get("labels") or {}).items()]
    if wanted and nodes and not fits:
        text, adds = " ".join(f"{key}={value}" for key, value in wanted.items()), survey.autoscaler()
        remedy = f"label the nodes: kubectl label node NAME {text}"
        if adds:
            remedy = f"see that {adds} adds nodes with these labels; else {remedy}"
        yield Diagnosis(WARNING if adds else ERROR, label, f"no node has its nodeLabels {text}", remedy)
        return
    for group in groups if wanted else []:
        own = {**group.spec, "tolerations": [*(group.spec.get("tolerations") or []), *(spec.get("tolerations") or [])]}
        taints = [placement.blocking_taints(own, node) for node in fits]
        if taints and all(taints):
            key = taints[0][0]["key"]
            seen = f"all of its nodes have the taint {key}, and neither flavor nor run tolerates it"
            yield Diagnosis(ERROR, label, seen, f"add a toleration of {key} to the flavor's spec.tolerations")


def explain_refusal(flavor: dict, group: PodGroup) -> str:
    """Return why Kueue passes over a flavor for a group of pods; empty where it does not."""
    spec = flavor.get("spec") or {}
    tolerations = [*(group.spec.get("tolerations") or []), *(spec.get("tolerations") or [])]
    for taint in spec.get("nodeTaints") or []:
        if taint.get("effect") in placement.KEEPS_OFF and not placement.tolerates(tolerations, taint):
            return f"it has the taint {taint['key']}"
    for key, value in (group.spec.get("nodeSelector") or {}).items():
        if (spec.get("nodeLabels") or {}).get(key, value) != value:
            return f"its nodes have {key}={spec['nodeLabels'][key]}"
    return ""


def check_refusals(cluster: dict, known: list[dict], groups: list[PodGroup]) -> Iterator[Diagnosis]:
    """Name groups of pods for which Kueue passes over all flavors, by taints of their own or the run's nodeSelector."""
    kinds = {one["metadata"]["name"]: one for one in known}
    for part in cluster["spec"].get("resourceGroups") or []:
        names = [one["name"] for one in part["flavors"] if one["name"] in kinds]
        covered = set(part.get("coveredResources") or [])
        for group in (one for one in groups if covered & set(placement.requests(one.spec))):
            why = {name: explain_refusal(kinds[name], group) for name in names}
            if names and all(why.values()):
                reasons = several(f"{name}: {reason}" for name, reason in why.items())
                seen = f"none of its flavors is for the {group.name} ({reasons})"
                remedy = "tolerate that taint in global.scheduling.tolerations or the flavor, or correct nodeSelector"
                yield Diagnosis(ERROR, f"clusterqueue/{cluster['metadata']['name']}", seen, remedy)
                return


def largest_quota(flavor: dict, resource: str, borrows: bool) -> Decimal | None:
    """Return the most that one flavor gives of a resource; None where that is not limited."""
    for one in flavor["resources"]:
        if one["name"] == resource:
            if borrows and "borrowingLimit" not in one:
                return None
            return amount(one.get("nominalQuota", 0)) + (amount(one["borrowingLimit"]) if borrows else 0)
    return Decimal(0)


def check_sizes(cluster: dict, groups: list[PodGroup]) -> Iterator[Diagnosis]:
    """Name groups of pods that no flavor takes alone: Kueue divides none over several."""
    borrows = bool(cluster["spec"].get("cohort") or cluster["spec"].get("cohortName"))
    for part in cluster["spec"].get("resourceGroups") or []:
        for group in groups:
            for name, each in placement.requests(group.spec).items():
                rooms = [largest_quota(one, name, borrows) for one in part["flavors"]]
                limits = [one for one in rooms if one is not None]
                wanted = each * group.pods
                if len(rooms) > 1 and len(limits) == len(rooms) and max(limits) < wanted <= sum(limits):
                    seen = f"no flavor alone has {show(wanted, name)} {name} for the {group.name}; the largest has "
                    seen += show(max(limits), name)
                    remedy = (
                        f"give one flavor that quota, or lower global.training.nodes: Kueue divides no {group.name}"
                    )
                    yield Diagnosis(ERROR, f"clusterqueue/{cluster['metadata']['name']}", seen, remedy)


def examine(cluster: dict, survey: ClusterSurvey, groups: list[PodGroup]) -> Iterator[Diagnosis]:
    """Name what keeps groups of pods of a run out of every flavor of their ClusterQueue."""
    training = [one for one in groups if one.trains]
    yield from check_nodes(cluster, survey, training)
    yield from check_refusals(cluster, survey.of("resourceflavors"), training)
    yield from check_sizes(cluster, groups)
