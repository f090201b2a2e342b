"""NetworkPolicies of the namespace: whether they keep a run's pods from each other, or from the name server."""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from trainyard.cluster.checks.diagnosis import ERROR, Diagnosis, several
from trainyard.cluster.checks.placement import selects
from trainyard.cluster.demand import Demand, PodGroup, at
from trainyard.cluster.survey import ClusterSurvey

SPACE = "kubernetes.io/metadata.name"


class PolicyPeer(NamedTuple):
    """Pods that a policy may let through: their labels, their namespace's labels, and the port; None for all ports."""

    labels: dict[str, str]
    space: dict[str, str]
    port: int | None = None
    outside: bool = False  # no pod, but a host outside of the cluster, whose address is not known


NAME_SERVER = PolicyPeer({"k8s-app": "kube-dns"}, {SPACE: "kube-system"}, 53)


def means(rule_peer: dict, peer: PolicyPeer, namespace: str) -> bool:
    """Whether a peer of a rule, of a policy in this namespace, means these pods."""
    if peer.outside:
        return "ipBlock" in rule_peer  # it may be any block's
    if "ipBlock" in rule_peer:
        return str(rule_peer["ipBlock"].get("cidr", "")).endswith("/0")
    if "namespaceSelector" in rule_peer:
        inside = selects(rule_peer["namespaceSelector"], peer.space)
    else:
        inside = peer.space.get(SPACE) == namespace
    return inside and ("podSelector" not in rule_peer or selects(rule_peer["podSelector"], peer.labels))


def opens(port: dict, number: int) -> bool:
    """Whether a port of a rule, or a range of ports, has a number; a name of a port has none."""
    first = port.get("port")
    return first is None or (isinstance(first, int) and first <= number <= port.get("endPort", first))


def lets(policy: dict, direction: str, peer: PolicyPeer, namespace: str) -> bool:
    """Whether a policy lets its pods reach these, or these reach its pods."""
    side = "to" if direction == "Egress" else "from"
    for rule in policy["spec"].get(direction.lower()) or []:
        peers, ports = rule.get(side) or [], rule.get("ports") or []
        fits = not ports or (peer.port is not None and any(opens(one, peer.port) for one in ports))
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


def blocked_by(group: PodGroup, policies: list[dict], direction: str, peer: PolicyPeer, namespace: str) -> str:
    """Return the names of the policies that close a way, where none lets through; empty where it is open."""
    found = closing(group, policies, direction)
    if any(lets(policy, direction, peer, namespace) for policy in found):
        return ""
    return several(sorted({policy["metadata"]["name"] for policy in found}))


def find_source(demand: Demand) -> PolicyPeer | None:
    """Return the host outside of the cluster that the dataset is read from; None for another source, or a proxy."""
    dataset = at(demand.values, "dataset", {})
    settings = dataset.get("source") or {}
    if dataset.get("envFrom") or any("PROXY" in str(one.get("name", "")).upper() for one in dataset.get("env") or []):
        return None
    if settings.get("competition") or settings.get("dataset"):
        return PolicyPeer({}, {}, 443, outside=True)
    where = urlsplit(str(settings.get("endpoint") or settings.get("url") or ""))
    host = where.hostname or ""
    object_store = where.scheme in ("s3", "gs", "az")
    if not object_store and ("." not in host or host.endswith((".svc", ".local")) or host.replace(".", "").isdigit()):
        return None
    return PolicyPeer({}, {}, where.port or (80 if where.scheme == "http" else 443), outside=True)


def check_source(demand: Demand, known: list[dict], namespace: str, groups: list[PodGroup]) -> Iterator[Diagnosis]:
    """Name policies that keep the preparation from the source of its data."""
    peer = find_source(demand)
    if peer is None:
        return
    for group in groups:
        if group.name == "dataset job" and (names := blocked_by(group, known, "Egress", peer, namespace)):
            seen = f"pods of the {group.name} may not reach the source of the data: egress is closed by {names}"
            remedy = "allow egress to it on its port, or set networkPolicy.enabled: true, which opens 80 and 443 for it"
            yield Diagnosis(ERROR, f"networkpolicy/{names}", seen, remedy)


def examine(survey: ClusterSurvey, demand: Demand) -> Iterator[Diagnosis]:
    """Name policies that close what a run needs. The chart's own count too: what one lets through, no other forbids."""
    if not survey.of("networkpolicies"):
        return
    own = [one for one in demand.objects if one["kind"] == "NetworkPolicy"]
    known, namespace = [*survey.of("networkpolicies"), *own], survey.namespace
    here = {SPACE: namespace} | at(survey.space() or {}, "metadata.labels", {})
    mute: dict[str, list[str]] = {}  # groups, by the policies that keep them from the name server
    for group in demand.groups:
        if names := blocked_by(group, known, "Egress", NAME_SERVER, namespace):
            mute.setdefault(names, []).append(group.name)
            continue
        for direction in ("Egress", "Ingress") if group.trains and demand.spreads else ():
            if names := blocked_by(group, known, direction, PolicyPeer(group.labels, here), namespace):
                seen = f"pods of the {group.name} may not reach each other: {direction.lower()} is closed by {names}"
                key = "networkPolicy.enabled: true" if direction == "Egress" else "networkPolicy.ingress: true"
                remedy = f"set {key}, or allow it for pods with app.kubernetes.io/part-of: trainyard, on all ports"
                yield Diagnosis(ERROR, f"networkpolicy/{names}", seen, remedy)
    muted = {name for groups in mute.values() for name in groups}
    yield from check_source(demand, known, namespace, [one for one in demand.groups if one.name not in muted])
    for names, groups in mute.items():
        seen = f"pods of the {several(groups)} may not reach the name server: egress is closed by {names}"
        remedy = "allow egress to kube-system on port 53, UDP and TCP, or set networkPolicy.enabled: true, which does"
        yield Diagnosis(ERROR, f"networkpolicy/{names}", seen, remedy)
