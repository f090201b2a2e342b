"""The namespace's ResourceQuotas and LimitRanges, compared with the requests of a run."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal

from trainyard.cluster.checks.diagnosis import ERROR, Diagnosis, amount, show
from trainyard.cluster.checks.placement import Amounts, requests
from trainyard.cluster.demand import Demand, PodGroup, containers

COUNTED = {"pytorchjob": "kubeflow.org", "mpijob": "kubeflow.org", "trainjob": "trainer.kubeflow.org", "job": "batch"}
PLAIN = ("cpu", "memory", "ephemeral-storage")


def key(kind: str) -> str:
    """Return how a quota counts objects of a kind."""
    group = COUNTED.get(kind.lower(), "")
    return f"count/{kind.lower()}s.{group}" if group else f"count/{kind.lower()}s"


def apply_defaults(container: Mapping, ranges: list[dict]) -> dict:
    """Return a container's resources with what LimitRanges fill in."""
    resources = container.get("resources") or {}
    limits, asked = dict(resources.get("limits") or {}), dict(resources.get("requests") or {})
    for limit in items(ranges, "Container"):
        for name, text in (limit.get("default") or {}).items():
            limits.setdefault(name, text)
        for name, text in (limit.get("defaultRequest") or {}).items():
            if name not in (resources.get("limits") or {}):
                asked.setdefault(name, text)
    return {"limits": limits, "requests": limits | asked}


def items(ranges: list[dict], kind: str) -> list[dict]:
    """Return the limits of a kind: Container, Pod or PersistentVolumeClaim."""
    return [one for thing in ranges for one in thing["spec"].get("limits") or [] if one.get("type") == kind]


def fill_requests(spec: Mapping, ranges: list[dict], part: str) -> dict:
    """Return a pod's spec whose containers request their limits, or what they request, defaults filled in."""

    def one(container: dict) -> dict:
        return {**container, "resources": {"requests": apply_defaults(container, ranges)[part]}}

    return {key: [one(each) for each in spec.get(key) or []] for key in ("initContainers", "containers")}


def sum_requests(demand: Demand, ranges: list[dict], fits: Mapping[str, PodGroup] | None = None) -> Amounts:
    """Return all that a run asks of a quota, by the quota's own names."""
    total: Amounts = defaultdict(Decimal)
    for group in demand.groups if fits is None else fits.values():
        total["pods"] += group.pods
        total["count/pods"] += group.pods
        for part in ("requests", "limits"):
            for name, number in requests(fill_requests(group.spec, ranges, part)).items():
                total[f"{part}.{name}"] += number * group.pods
                if part == "requests" and name in PLAIN:
                    total[name] += number * group.pods
    if fits is not None:
        return total
    for claim in demand.claims:
        size = amount(claim["spec"]["resources"]["requests"]["storage"])
        total["requests.storage"] += size
        total["persistentvolumeclaims"] += 1
        if name := claim["spec"].get("storageClassName"):
            total[f"{name}.storageclass.storage.k8s.io/requests.storage"] += size
            total[f"{name}.storageclass.storage.k8s.io/persistentvolumeclaims"] += 1
    for thing in demand.objects:
        total[key(thing["kind"])] += 1
        if thing["kind"] in ("Secret", "ConfigMap", "Service"):
            total[f"{thing['kind'].lower()}s"] += 1
    for name, number in count_further(demand).items():
        total[name] += number
    return total


def count_further(demand: Demand) -> Amounts:
    """Return the objects that Helm and the operators make of a run beside its own, by the quota's names.

    Helm keeps the release in a Secret. training-operator makes a Service for each pod; mpi-operator makes a Service, a
    ConfigMap, a Secret and the launcher's Job for each MPIJob; Trainer makes a JobSet for each TrainJob, which makes a
    Job and a Service.
    """
    total: Amounts = defaultdict(Decimal, {"secrets": Decimal(1), "count/secrets": Decimal(1)})
    for thing in demand.jobs:
        made: Mapping[str, int] = {
            "PyTorchJob": {"services": sum(one.pods for one in demand.groups if one.owner is thing)},
            "MPIJob": {"services": 1, "configmaps": 1, "secrets": 1, "jobs.batch": 1},
            "TrainJob": {"services": 1, "jobs.batch": 1, "jobsets.jobset.x-k8s.io": 1},
        }[thing["kind"]]
        for name, number in made.items():
            total[f"count/{name}"] += number
            if "." not in name:
                total[name] += number
    return total


def scoped(quota: dict, group: PodGroup) -> bool:
    """Whether a quota counts the pods of a group, by its scopes."""
    scopes = [{"scopeName": one, "operator": "Exists"} for one in quota["spec"].get("scopes") or []]
    scopes += (quota["spec"].get("scopeSelector") or {}).get("matchExpressions") or []
    for one in scopes:
        name, operator, values = one["scopeName"], one["operator"], one.get("values") or []
        ends, own = "activeDeadlineSeconds" in group.spec, group.spec.get("priorityClassName", "")
        effort = any((each.get("resources") or {}).get(part) for each in containers(group.spec)
                     for part in ("requests", "limits"))  # fmt: skip
        fits = {
            "Terminating": ends,
            "NotTerminating": not ends,
            "BestEffort": not effort,
            "NotBestEffort": effort,
            "PriorityClass": {"In": own in values, "NotIn": own not in values, "Exists": bool(own),
                              "DoesNotExist": not own}.get(operator, False),
        }.get(name, False)  # fmt: skip
        if not fits:
            return False
    return True


def check_quota(thing: dict, demand: Demand, ranges: list[dict]) -> Iterator[Diagnosis]:
    """Name what a run asks beyond a ResourceQuota, and what it does not name though the quota counts it."""
    name, status = thing["metadata"]["name"], thing.get("status") or {}
    hard = thing["spec"].get("hard") or {}
    groups = {group.name: group for group in demand.groups if scoped(thing, group)}
    narrow = bool(thing["spec"].get("scopes") or thing["spec"].get("scopeSelector"))
    wanted = sum_requests(demand, ranges, groups if narrow else None)
    for which, text in sorted(hard.items()):
        most, taken = amount(text), amount((status.get("used") or {}).get(which, 0))
        if wanted.get(which, Decimal(0)) <= max(Decimal(0), most - taken):
            continue
        used = f", of which {show(taken, which)} are used" if taken else ""
        seen = f"it allows {show(most, which)} {which}{used}, and the run asks {show(wanted[which], which)}"
        yield Diagnosis(ERROR, f"resourcequota/{name}", seen, raising(which, taken + wanted[which]))
    for group in groups.values():
        yield from check_unnamed(name, hard, group, ranges)


def raising(which: str, total: Decimal) -> str:
    """Return what to do about a quota that is too small."""
    if "storage" in which and "ephemeral" not in which:
        lower = "lower size under global.storage"
    elif "persistentvolumeclaims" in which:
        lower = "name claims that exist (global.storage.*.existingClaim)"
    elif "/" in which and which.startswith(("requests.", "limits.")):
        lower = "lower global.training.nodes or gpusPerNode"
    elif which.startswith(("count/", "pods", "secrets", "configmaps", "services")):
        lower = "remove what is no longer used"
    else:
        lower = "lower global.training.nodes or resources"
    return f"{lower}, or have the quota raised to {which}: {show(total, which)}"


def check_unnamed(name: str, hard: Mapping, group: PodGroup, ranges: list[dict]) -> Iterator[Diagnosis]:
    """Name resources that a quota counts and some container of a pod does not name: such a pod is refused."""
    counted = {which if "." in which else f"requests.{which}" for which in hard
               if which.removeprefix("requests.").removeprefix("limits.") in PLAIN}  # fmt: skip
    for which in sorted(counted):
        part, _, resource = which.partition(".")
        bare = [one["name"] for one in containers(group.spec) if resource not in apply_defaults(one, ranges)[part]]
        if bare:
            seen = (
                f"it counts {which}, and container {bare[0]} of the {group.name} names none: the pod would be refused"
            )
            under = "global.training.resources" if group.trains else f"the resources of the {group.name}"
            remedy = f"set {part}.{resource} under {under}, or have a LimitRange give a default"
            yield Diagnosis(ERROR, f"resourcequota/{name}", seen, remedy)


def check_limits(thing: dict, demand: Demand, ranges: list[dict]) -> list[Diagnosis]:
    """Name containers, pods and claims outside what a LimitRange allows: of those with one remedy, the first."""
    found: dict[str, Diagnosis] = {}
    for one in check_all_limits(thing, demand, ranges):
        found.setdefault(one.remedy, one)
    return list(found.values())


def check_all_limits(thing: dict, demand: Demand, ranges: list[dict]) -> Iterator[Diagnosis]:
    """Name everything outside what a LimitRange allows."""
    label = f"limitrange/{thing['metadata']['name']}"
    for limit in thing["spec"].get("limits") or []:
        kind = limit.get("type")
        for group in demand.groups:
            under = "global.training.resources" if group.trains else f"the resources of the {group.name}"
            if kind == "Container":
                for one in containers(group.spec):
                    what = f"container {one['name']} of the {group.name}"
                    yield from check_limit(label, limit, apply_defaults(one, ranges), what, under)
            elif kind == "Pod":
                sums = {part: requests(fill_requests(group.spec, ranges, part)) for part in ("requests", "limits")}
                yield from check_limit(label, limit, sums, f"a pod of the {group.name}", under)
        for claim in demand.claims if kind == "PersistentVolumeClaim" else []:
            sizes = {"requests": claim["spec"]["resources"]["requests"], "limits": {}}
            yield from check_limit(
                label, limit, sizes, f"the claim {claim['metadata']['name']}", "size of global.storage"
            )


def check_limit(label: str, limit: Mapping, resources: Mapping, what: str, under: str) -> Iterator[Diagnosis]:
    """Name where resources are outside one limit, as the API server compares them: limits and requests with both."""
    asked, most, claim = resources["requests"], resources["limits"], limit.get("type") == "PersistentVolumeClaim"
    for name, text in (limit.get("max") or {}).items():
        if name not in most and not claim:
            seen = f"it allows {text} {name} at most, and {what} has no limit"
            yield Diagnosis(ERROR, label, seen, f"set limits.{name} under {under} to {text} or less")
        for part in ("limits", "requests"):
            if amount(resources[part].get(name, 0)) > amount(text):
                have = show(amount(resources[part][name]), name)
                seen = f"it allows {text} {name} at most, and {what} has {part} of {have}"
                yield Diagnosis(
                    ERROR, label, seen, f"set {part}.{name} under {under} to {text} or less, or raise its max"
                )
                break
    for name, text in (limit.get("min") or {}).items():
        if name not in asked:
            seen = f"it wants {text} {name} at least, and {what} requests none"
            yield Diagnosis(ERROR, label, seen, f"set requests.{name} under {under} to {text} or more")
        for part in ("requests", "limits"):
            if name in resources[part] and amount(resources[part][name]) < amount(text):
                have = show(amount(resources[part][name]), name)
                seen = f"it wants {text} {name} at least, and {what} has {part} of {have}"
                yield Diagnosis(
                    ERROR, label, seen, f"set {part}.{name} under {under} to {text} or more, or lower its min"
                )
                break
    for name, text in (limit.get("maxLimitRequestRatio") or {}).items():
        if (
            name in asked
            and name in most
            and amount(asked[name])
            and amount(most[name]) / amount(asked[name]) > amount(text)
        ):
            seen = f"it allows a limit of {text} times the request of {name}, and {what} has more"
            yield Diagnosis(ERROR, label, seen, f"raise requests.{name} under {under}, or lower its limit")
    for name, text in (limit.get("default") or {}).items():
        if name in asked and amount(asked[name]) > amount(most.get(name, asked[name])):
            seen = f"it gives {what} a limit of {text} {name}, below its request of {show(amount(asked[name]), name)}"
            yield Diagnosis(ERROR, label, seen, f"set limits.{name} under {under}")
