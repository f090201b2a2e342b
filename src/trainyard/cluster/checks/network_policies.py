"""NetworkPolicies of the namespace: whether they keep a run's pods from each other, or from the name server."""

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from itertools import islice
from typing import NamedTuple
from urllib.parse import urlsplit

from trainyard.cluster.checks.diagnosis import ERROR, Diagnosis, several
from trainyard.cluster.checks.placement import selects
from trainyard.cluster.demand import Demand, PodGroup, at
from trainyard.cluster.survey import SPACE, ClusterSurvey

DNS_NAMES = ("kube-dns", "coredns", "dns-default", "rke2-coredns-rke2-coredns")
NODE_LOCAL = "169.254.20.10"  # where the name server's cache on each node answers, if there is one
SAMPLE = 20  # addresses of pods that stand for all


class PolicyPeer(NamedTuple):
    """Pods that a policy may let through: their labels, their namespace's labels, and ports; no port for all ports."""

    labels: dict[str, str]
    space: dict[str, str]
    ports: tuple[int | str, ...] = ()
    addresses: tuple[str, ...] = ()  # as far as they are known
    outside: bool = False  # no pod, but a host outside of the cluster, whose address is not known
    partly: bool = False  # of its namespace only the name is known


# Where name servers are, if this user may not see them: of most clusters, and of OpenShift
NAME_SERVERS = [
    PolicyPeer({"k8s-app": "kube-dns"}, {SPACE: "kube-system"}, (53,), (NODE_LOCAL,), partly=True),
    PolicyPeer({"dns.operator.openshift.io/daemonset-dns": "default"}, {SPACE: "openshift-dns"}, (5353,), partly=True),
]


def is_name_server(service: dict) -> bool:
    """Whether a Service is the cluster's name server."""
    labels = service["metadata"].get("labels") or {}
    return service["metadata"]["name"] in DNS_NAMES or labels.get("k8s-app") == "kube-dns"


def list_name_servers(survey: ClusterSurvey) -> list[PolicyPeer]:
    """Return the pods that answer names, with the ports of their Service and their own: OpenShift's have 5353."""
    found = []
    for service in filter(is_name_server, survey.of("services")):
        meta, spec = service["metadata"], service["spec"]
        slices = [one for one in survey.of("endpointslices")
                  if one["metadata"].get("namespace") == meta["namespace"]
                  and one["metadata"].get("labels", {}).get("kubernetes.io/service-name") == meta["name"]]  # fmt: skip
        ports = {53} | {
            one[key] for each in slices for one in each.get("ports") or [] for key in ("port", "name") if one.get(key)
        }
        held = [text for each in slices for one in each.get("endpoints") or [] for text in one.get("addresses") or []]
        addresses = (NODE_LOCAL, *held, *([spec["clusterIP"]] if spec.get("clusterIP", "None") != "None" else []))
        labels = {"k8s-app": "kube-dns"} | (spec.get("selector") or {})
        found.append(PolicyPeer(labels, {SPACE: meta["namespace"]}, tuple(ports), addresses, partly=True))
    return found or NAME_SERVERS


def holds(block: dict, addresses: tuple[str, ...]) -> bool:
    """Whether a block of addresses has one of these; where none is known, whether it has all there are."""
    if not addresses:
        return str(block.get("cidr", "")).endswith("/0")
    whole = ip_network(block["cidr"], strict=False)
    without = [ip_network(one, strict=False) for one in block.get("except") or []]
    known = [ip_address(one) for one in addresses]
    return any(one in whole and not any(one in part for part in without) for one in known)


def about_name(selector: dict) -> dict:
    """Return what a selector of namespaces says of their name alone."""
    labels = {key: value for key, value in (selector.get("matchLabels") or {}).items() if key == SPACE}
    rules = [one for one in selector.get("matchExpressions") or [] if one["key"] == SPACE]
    return {"matchLabels": labels, "matchExpressions": rules}


def means(rule_peer: dict, peer: PolicyPeer, namespace: str) -> bool:
    """Whether a peer of a rule, of a policy in this namespace, means these pods, as far as is known."""
    if peer.outside:
        return "ipBlock" in rule_peer  # it may be any block's
    if "ipBlock" in rule_peer:
        return holds(rule_peer["ipBlock"], peer.addresses)
    if "namespaceSelector" in rule_peer:
        selector = rule_peer["namespaceSelector"] or {}
        inside = selects(about_name(selector) if peer.partly else selector, peer.space)
    else:
        inside = peer.space.get(SPACE) == namespace
    return inside and ("podSelector" not in rule_peer or selects(rule_peer["podSelector"], peer.labels))


def opens(port: dict, wanted: int | str) -> bool:
    """Whether a port of a rule, or a range of ports, is the wanted one: by its number, or by its name."""
    first = port.get("port")
    if isinstance(first, int) and isinstance(wanted, int):
        return first <= wanted <= int(port.get("endPort", first))
    return first is None or first == wanted


def lets(policy: dict, direction: str, peer: PolicyPeer, namespace: str) -> bool:
    """Whether a policy lets its pods reach these, or these reach its pods."""
    side = "to" if direction == "Egress" else "from"
    for rule in policy["spec"].get(direction.lower()) or []:
        peers, ports = rule.get(side) or [], rule.get("ports") or []
        fits = not ports or any(opens(one, wanted) for one in ports for wanted in peer.ports)
        if fits and (not peers or any(means(one, peer, namespace) for one in peers)):
            return True
    return False


def closing(group: PodGroup, policies: list[dict], direction: str) -> list[dict]:
    """Return the policies that close a direction of a group's pods, but for what they let through."""
    found = []
    for policy in policies:
        spec = policy["spec"]
        types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
        if direction in types and selects(spec.get("podSelector") or {}, group.labels):
            found.append(policy)
    return found


def blocked_by(group: PodGroup, policies: list[dict], direction: str, peers: list[PolicyPeer], namespace: str) -> str:
    """Return the names of the policies that close the way to all of some peers; empty where one of them is open."""
    found = closing(group, policies, direction)
    if any(lets(policy, direction, peer, namespace) for policy in found for peer in peers):
        return ""
    return several(sorted({policy["metadata"]["name"] for policy in found}))


def find_source(demand: Demand, services: list[dict]) -> PolicyPeer | None:
    """Return the host outside of the cluster that the dataset is read from; None for another source, or a proxy."""
    dataset = at(demand.values, "dataset", {})
    settings = dataset.get("source") or {}
    if dataset.get("envFrom") or any("PROXY" in str(one.get("name", "")).upper() for one in dataset.get("env") or []):
        return None
    if settings.get("competition") or settings.get("dataset"):
        return PolicyPeer({}, {}, (443,), outside=True)
    where = urlsplit(str(settings.get("endpoint") or settings.get("url") or ""))
    host = where.hostname or ""
    object_store = where.scheme in ("s3", "gs", "az")
    inside = host.split(".") in [[one["metadata"]["name"], one["metadata"]["namespace"]] for one in services]
    inside = inside or "." not in host or host.endswith((".svc", ".local")) or host.replace(".", "").isdigit()
    if inside and not object_store:
        return None
    return PolicyPeer({}, {}, (where.port or (80 if where.scheme == "http" else 443),), outside=True)


def check_source(
    demand: Demand, known: list[dict], survey: ClusterSurvey, groups: list[PodGroup]
) -> Iterator[Diagnosis]:
    """Name policies that keep the preparation from the source of its data."""
    peer = find_source(demand, survey.of("services"))
    if peer is None:
        return
    for group in groups:
        if group.name == "dataset job" and (names := blocked_by(group, known, "Egress", [peer], survey.namespace)):
            seen = f"pods of the {group.name} may not reach the source of the data: egress is closed by {names}"
            remedy = f"allow egress to it on its port {peer.ports[0]}"
            remedy += ", or set networkPolicy.enabled: true, which opens it" if peer.ports[0] in (80, 443) else ""
            yield Diagnosis(ERROR, f"networkpolicy/{names}", seen, remedy)


def list_addresses(pods: list[dict]) -> tuple[str, ...]:
    """Return addresses that pods have, a few, which show where those of a run will be."""
    own = (one.get("status", {}).get("podIP") for one in pods if not one["spec"].get("hostNetwork"))
    return tuple(islice(filter(None, own), SAMPLE))


def examine(survey: ClusterSurvey, demand: Demand) -> Iterator[Diagnosis]:
    """Name policies that close what a run needs. The chart's own count too: what one lets through, no other forbids."""
    own = [one for one in demand.objects if one["kind"] == "NetworkPolicy"]
    known, namespace = [*survey.of("networkpolicies"), *own], survey.namespace
    if "networkpolicies" in survey.unseen or not known:
        return
    servers, used = list_name_servers(survey), list_addresses(survey.of("pods"))
    mute: dict[str, list[str]] = {}  # groups, by the policies that keep them from the name server
    for group in demand.groups:
        if names := blocked_by(group, known, "Egress", servers, namespace):
            mute.setdefault(names, []).append(group.name)
            continue
        for direction in ("Egress", "Ingress") if group.trains and demand.spreads else ():
            others = PolicyPeer(group.labels, survey.labels(), addresses=used)
            if names := blocked_by(group, known, direction, [others], namespace):
                seen = f"pods of the {group.name} may not reach each other: {direction.lower()} is closed by {names}"
                key = "networkPolicy.enabled: true" if direction == "Egress" else "networkPolicy.ingress: true"
                remedy = f"set {key}, or allow it for pods with app.kubernetes.io/part-of: trainyard, on all ports"
                yield Diagnosis(ERROR, f"networkpolicy/{names}", seen, remedy)
    muted = {name for groups in mute.values() for name in groups}
    yield from check_source(demand, known, survey, [one for one in demand.groups if one.name not in muted])
    for names, groups in mute.items():
        seen = f"pods of the {several(groups)} may not reach the name server: egress is closed by {names}"
        home, port = servers[0].space[SPACE], max(one for one in servers[0].ports if isinstance(one, int))
        remedy = f"allow egress to {home} on port {port}, UDP and TCP, or set networkPolicy.enabled: true, which does"
        remedy += "" if (home, port) == ("kube-system", 53) else ", with networkPolicy.dns and dnsPort for it"
        yield Diagnosis(ERROR, f"networkpolicy/{names}", seen, remedy)
