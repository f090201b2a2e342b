"""The network inside the cluster: its name server, policies that keep pods apart, webhooks that nobody answers."""

from collections.abc import Iterator

from trainyard.cluster.checks import network_policies, webhooks
from trainyard.cluster.checks.diagnosis import ERROR, Check, Diagnosis, check
from trainyard.cluster.checks.network_policies import is_name_server
from trainyard.cluster.checks.webhooks import answering
from trainyard.cluster.demand import Demand, at
from trainyard.cluster.survey import ClusterSurvey

# Nodes of EKS Auto Mode bring the name server themselves
EKS = "eks.amazonaws.com/compute-type"


def check_dns(survey: ClusterSurvey) -> Iterator[Diagnosis]:
    """Name a cluster without a name server, or whose name server does not answer."""
    services = [one for one in survey.of("services") if is_name_server(one)]
    if not services and any((one["metadata"].get("labels") or {}).get(EKS) == "auto" for one in survey.of("nodes")):
        return
    if not services:
        seen = "there is no Service kube-dns: pods cannot find each other by name"
        remedy = "install CoreDNS (https://github.com/coredns/deployment/tree/master/kubernetes)"
        yield Diagnosis(ERROR, "service/kube-dns", seen, remedy)
        return
    if "endpointslices" in survey.unseen:
        return
    slices = survey.of("endpointslices")
    if any(answering(one["metadata"]["namespace"], one["metadata"]["name"], slices) for one in services):
        return
    home, name = services[0]["metadata"]["namespace"], services[0]["metadata"]["name"]
    for thing in survey.of("deployments"):
        pods = at(thing, "spec.template.metadata.labels", {})
        wanted = services[0]["spec"].get("selector") or {"": ""}
        if thing["metadata"]["namespace"] == home and wanted.items() <= pods.items():
            own = thing["metadata"]["name"]
            if thing["spec"].get("replicas", 1) == 0:
                seen = f"deployment {own} is scaled to 0: no name resolves"
                yield Diagnosis(
                    ERROR, f"service/{name}", seen, f"kubectl -n {home} scale deployment/{own} --replicas=2"
                )
                return
            name = f"{name}, of deployment {own}"
    seen = f"no pod answers behind service {name}: no name resolves"
    yield Diagnosis(
        ERROR,
        f"service/{services[0]['metadata']['name']}",
        seen,
        f"kubectl -n {home} get pods; kubectl -n {home} describe pods",
    )


def examine(survey: ClusterSurvey, demand: Demand, resolved: str = "", broken: tuple[Diagnosis, ...] = ()) -> Check:
    """Check name resolution, policies and webhooks; `resolved` and `broken` are what a probe pod has shown."""
    unseen: dict[str, str] = {
        kind: survey.unseen[kind] for kind in ("services", "endpointslices", "networkpolicies") if kind in survey.unseen
    }
    unseen |= {kind: why for kind, why in survey.unseen.items() if kind.endswith("webhookconfigurations")}
    wrong: list[Diagnosis] = []
    if "services" not in unseen:
        # A cloud may answer names outside of the cluster, as Cloud DNS does
        wrong += [] if resolved else check_dns(survey)
        wrong += [*webhooks.examine(survey, demand), *webhooks.check_conversions(survey, demand)]
    wrong += network_policies.examine(survey, demand)
    wrong += [one for one in broken if not wrong]  # names fail for a cause that has been named
    sound = (
        [resolved]
        if resolved
        else ([] if "services" in unseen or wrong else ["the name server has pods that are ready"])
    )
    return check("network", sound, wrong, [f"{kind}: {why}" for kind, why in unseen.items()])
