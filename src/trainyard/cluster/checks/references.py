"""References of the run's objects beside Secrets: stores of secrets, claims of devices, classes of ingresses."""

from collections.abc import Iterator

from trainyard.cluster.checks.diagnosis import ERROR, WARNING, Diagnosis, find_by_name, several
from trainyard.cluster.demand import Demand, at
from trainyard.cluster.survey import ClusterSurvey

STORES = {"SecretStore": "secretstores.external-secrets.io",
          "ClusterSecretStore": "clustersecretstores.external-secrets.io"}  # fmt: skip
CLAIMS = {"resourceClaimName": "resourceclaims.resource.k8s.io",
          "resourceClaimTemplateName": "resourceclaimtemplates.resource.k8s.io"}  # fmt: skip
CLASSES, INGRESSES = "deviceclasses.resource.k8s.io", "ingressclasses.networking.k8s.io"
MADE_OF = {"resourceClaimName": "ResourceClaim", "resourceClaimTemplateName": "ResourceClaimTemplate"}
DEFAULT = "ingressclass.kubernetes.io/is-default-class"
# By these an Ingress without a class is served: an older way to name one, and the controllers of OpenShift and of GKE
NAMED_BEFORE, ROUTER = "kubernetes.io/ingress.class", "openshift.io/ingress-to-route"
GKE = "cloud.google.com/gke-nodepool"


def list_kinds(demand: Demand) -> list[str]:
    """Return the kinds that must be read for what a run names."""
    made = {thing["kind"] for thing in demand.objects}
    found = [*STORES.values()] if "ExternalSecret" in made else []
    found += [INGRESSES] if "Ingress" in made else []
    claimed = any(group.spec.get("resourceClaims") for group in demand.groups)
    return found + ([*CLAIMS.values(), CLASSES] if claimed else [])


def check_stores(demand: Demand, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name stores of secrets that do not exist, or are not ready."""
    for thing in demand.objects:
        if thing["kind"] != "ExternalSecret":
            continue
        kind, name = at(thing, "spec.secretStoreRef.kind", "SecretStore"), at(thing, "spec.secretStoreRef.name", "")
        label, store = f"{kind.lower()}/{name}", find_by_name(survey.of(STORES.get(kind, "")), name)
        if STORES.get(kind) in survey.unseen or name in demand.makes(kind):
            continue
        if store is None:
            seen = "values name it under secrets.external.store, and it does not exist"
            yield Diagnosis(ERROR, label, seen, f"create it, or correct the name (kubectl get {kind.lower()})")
            continue
        for one in at(store, "status.conditions", []):
            if one.get("type") == "Ready" and one.get("status") == "False":
                seen = f"it is not ready: {one.get('message') or one.get('reason', '')}"
                yield Diagnosis(ERROR, label, seen, f"correct its address or login: kubectl describe {label}")


def check_devices(demand: Demand, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name claims of devices, their templates and their classes that do not exist."""
    wanted = {(key, one[key]) for group in demand.groups for one in group.spec.get("resourceClaims") or []
              for key in CLAIMS if one.get(key)}  # fmt: skip
    wanted -= {(key, name) for key, kind in MADE_OF.items() for name in demand.makes(kind)}
    # NVIDIA's driver makes a ComputeDomain's template, of the name that the domain says
    domains = [thing for thing in demand.objects if thing["kind"] == "ComputeDomain"]
    wanted -= {("resourceClaimTemplateName", at(one, "spec.channel.resourceClaimTemplate.name", "")) for one in domains}
    for key, name in sorted(wanted):
        plural = CLAIMS[key].partition(".")[0]
        label, thing = f"{plural.removesuffix('s')}/{name}", find_by_name(survey.of(CLAIMS[key]), name)
        if CLAIMS[key] in survey.unseen:
            continue
        if thing is None:
            seen = f"pods claim devices by it, and it does not exist in namespace {survey.namespace}"
            answer = f"create it, or correct global.training.resourceClaims (kubectl get {plural})"
            yield Diagnosis(ERROR, label, seen, answer)
            continue
        spec = at(thing, "spec.spec" if key == "resourceClaimTemplateName" else "spec", {})
        asked = {at(one, "exactly.deviceClassName", one.get("deviceClassName", ""))
                 for one in at(spec, "devices.requests", [])}  # fmt: skip
        for lacking in sorted(asked - {""} - {one["metadata"]["name"] for one in survey.of(CLASSES)}):
            if CLASSES not in survey.unseen:
                seen = f"it asks for devices of the class {lacking}, which does not exist"
                yield Diagnosis(ERROR, label, seen, "install the driver that brings it (kubectl get deviceclass)")


def serves_classless(ingress: dict, classes: list[dict], nodes: list[dict]) -> bool:
    """Whether something serves an Ingress that names no class, though no class is the default."""
    routed = any(at(one, "spec.controller") == ROUTER for one in classes)
    by_cloud = any(GKE in (one["metadata"].get("labels") or {}) for one in nodes)
    return bool(at(ingress, "metadata.annotations", {}).get(NAMED_BEFORE)) or routed or by_cloud


def check_ingresses(demand: Demand, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name classes of ingresses that do not exist: nothing would serve the file browser's address."""
    classes = survey.of(INGRESSES)
    for thing in demand.objects if INGRESSES not in survey.unseen else []:
        if thing["kind"] != "Ingress":
            continue
        label, name = f"ingress/{thing['metadata']['name']}", at(thing, "spec.ingressClassName", "")
        default = any(at(one, "metadata.annotations", {}).get(DEFAULT) == "true" for one in classes)
        others = several(one["metadata"]["name"] for one in classes) or "none: install an ingress controller"
        if name and find_by_name(classes, name) is None:
            seen = f"its class {name} does not exist"
            yield Diagnosis(WARNING, label, seen, f"set filebrowser.ingress.className to one of {others}")
        elif not name and not default and not serves_classless(thing, classes, survey.of("nodes")):
            seen = "it names no class, and the cluster has no default one: nothing serves it"
            yield Diagnosis(WARNING, label, seen, f"set filebrowser.ingress.className to one of {others}")


def examine(demand: Demand, survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name what the run's objects name in vain."""
    yield from (*check_stores(demand, survey), *check_devices(demand, survey), *check_ingresses(demand, survey))
