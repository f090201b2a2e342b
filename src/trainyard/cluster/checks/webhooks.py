"""Webhooks that must agree to a run's objects, and that nobody answers."""

import base64
from collections.abc import Iterator
from datetime import datetime

from trainyard.cluster import certificates, trainjobs
from trainyard.cluster.checks.diagnosis import ERROR, WARNING, Diagnosis
from trainyard.cluster.checks.placement import selects
from trainyard.cluster.demand import Demand, at
from trainyard.cluster.survey import DEFINITIONS, ClusterSurvey

KINDS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "Ingress": "ingresses",
}
FURTHER = {"TrainJob": ("jobsets", "jobs"), "MPIJob": ("jobs",)}  # what operators make of them, beside pods
GROUPS = {"pods": "", "jobsets": "jobset.x-k8s.io", "jobs": "batch"}


def plural(kind: str) -> str:
    """Return the name of a kind's resource."""
    return PLURALS.get(kind, f"{kind.lower()}s")


def group_of(thing: dict) -> str:
    """Return the group of an object's API; empty for the core's."""
    found: str = thing.get("apiVersion", "").rpartition("/")[0]
    return found


def list_resources(demand: Demand) -> dict[str, set[str]]:
    """Return the resources that a run creates, itself or by its operators, with their groups."""
    found: dict[str, set[str]] = {"pods": {""}}
    for thing in demand.objects:
        found.setdefault(plural(thing["kind"]), set()).add(group_of(thing))
        for more in FURTHER.get(thing["kind"], ()):
            found.setdefault(more, set()).add(GROUPS[more])
    return found


def find_resource(hook: dict, resources: dict[str, set[str]], labels: dict) -> str:
    """Return a resource of the run for which a webhook is asked on creation; empty where it is for none."""
    if "namespaceSelector" in hook and not selects(hook["namespaceSelector"] or {}, labels):
        return ""
    for rule in hook.get("rules") or []:
        if not {"CREATE", "*"} & set(rule.get("operations") or []):
            continue
        for resource, groups in resources.items():
            named = {resource, "*", "*/*"} & set(rule.get("resources") or [])
            if named and ({"*"} | groups) & set(rule.get("apiGroups") or []):
                return resource
    return ""


def answering(namespace: str, name: str, slices: list[dict]) -> bool:
    """Whether a Service has an endpoint that is ready."""
    for thing in slices:
        meta = thing["metadata"]
        if meta.get("namespace") != namespace or meta.get("labels", {}).get("kubernetes.io/service-name") != name:
            continue
        if any((one.get("conditions") or {}).get("ready") is not False for one in thing.get("endpoints") or []):
            return True
    return False


def check_service(hook: dict, what: str, survey: ClusterSurvey) -> tuple[str, str]:
    """Return the level and what is wrong with what a webhook calls; empty where nothing is."""
    service = at(hook, "clientConfig.service", {})
    home, name = service["namespace"], service["name"]
    known = any(
        (one["metadata"]["namespace"], one["metadata"]["name"]) == (home, name) for one in survey.of("services")
    )
    must = f"{hook['name']} must agree to {what}, and"
    if not known:
        return ERROR, f"{must} its service {home}/{name} does not exist: all are refused"
    if "endpointslices" not in survey.unseen and not answering(home, name, survey.of("endpointslices")):
        return ERROR, f"{must} no pod answers behind {home}/{name}: all are refused"
    bundle = at(hook, "clientConfig.caBundle", "")
    if not bundle:
        return WARNING, f"{must} has no caBundle: its certificate is not trusted"
    bad = find_bundle_fault(bundle, survey.now)
    return (ERROR, f"{must} its caBundle {bad}: all are refused") if bad else ("", "")


def find_bundle_fault(bundle: str, now: datetime) -> str:
    """Return what is wrong with a caBundle; empty where one of its certificates is valid."""
    try:
        held = certificates.read_validities(base64.b64decode(bundle, validate=True).decode())
    except ValueError:
        return "holds no certificate"
    last = max(one.end for one in held)
    return f"has expired on {last:%Y-%m-%d}" if last < now else ""


def examine(survey: ClusterSurvey, demand: Demand) -> Iterator[Diagnosis]:
    """Name webhooks that are asked about a run's objects, must answer, and have nobody behind them."""
    labels, resources, pods = survey.labels(), list_resources(demand), [group.labels for group in demand.groups]
    for kind in KINDS:
        for thing in survey.of(kind):
            label = f"{kind.removesuffix('s')}/{thing['metadata']['name']}"
            for hook in thing.get("webhooks") or []:
                what, service = find_resource(hook, resources, labels), at(hook, "clientConfig.service", {})
                if not what or not service or hook.get("failurePolicy", "Fail") == "Ignore":
                    continue
                if what == "pods" and not any(selects(hook.get("objectSelector") or {}, one) for one in pods):
                    continue
                level, seen = check_service(hook, what, survey)
                remedy = (
                    f"start what is behind it (kubectl -n {service['namespace']} get pods), or, if it was left behind, "
                )
                remedy += f"kubectl delete {label}"
                if "caBundle" in seen:
                    remedy = (
                        "see what fills it: cert-manager's cainjector, or the operator itself, which a restart helps"
                    )
                if level:
                    yield Diagnosis(level, label, seen, remedy)


def check_conversions(survey: ClusterSurvey, demand: Demand) -> Iterator[Diagnosis]:
    """Name CRDs whose versions a webhook converts that nobody answers: their objects cannot be read."""
    used = {f"{plural(thing['kind'])}.{group_of(thing)}" for thing in demand.objects}
    for crd in survey.of(DEFINITIONS):
        client = at(crd, "spec.conversion.webhook.clientConfig", {})
        versions = {*at(crd, "status.storedVersions", ()), *(one["name"] for one in at(crd, "spec.versions", ()))}
        if at(crd, "spec.conversion.strategy") != "Webhook" or "service" not in client or len(versions) < 2:
            continue  # of one version nothing is converted: JobSet's own CRD has such a webhook
        name = crd["metadata"]["name"]
        level, seen = check_service({"name": "its conversion", "clientConfig": client}, "each read", survey)
        if level:
            level = level if name in used or name == trainjobs.JOBSETS else WARNING
            answer = f"start what is behind it: kubectl -n {client['service']['namespace']} get pods"
            yield Diagnosis(level, f"crd/{name}", seen.removesuffix(": all are refused"), answer)
