"""NetworkPolicies of the namespace: whether they keep a run's pods from each other, or from the name server."""

from collections.abc import Iterator
from typing import NamedTuple

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


NAME_SERVER = PolicyPeer({"k8s-app": "kube-dns"}, {SPACE: "kube-system"}, 53)


def means(rule_peer: dict, peer: PolicyPeer, namespace: str) -> bool:
    """Whether a peer of a rule, of a policy in this namespace, means these pods."""
    if "ipBlock" in rule_peer:
        return str(rule_peer["ipBlock"].get("cidr", "")).endswith("/0")
    if "namespaceSelector" in rule_peer:
        inside = selects(rule_peer["namespaceSelector"], peer.space)
    else:
        inside = peer.space.get(SPACE) == namespace
    return inside and ("podSelector" not in rule_peer or selects(rule_peer["podSelector"], peer.labels))


def lets(policy: dict, direction: str, peer: PolicyPeer, namespace: str) -> bool:
    """Whether a policy lets its pods reach these, or these reach its pods."""
    side = "to" if direction == "Egress" else "from"
    for rule in policy["spec"].get(direction.lower()) or []:
        peers, ports = rule.get(side) or [], rule.get("ports") or []
        fits = not ports or (peer.port is not None and any(one.get("port") in (peer.port, None) for one in ports))
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
    for names, groups in mute.items():
        seen = f"pods of the {several(groups)} may not reach the name server: egress is closed by {names}"
        remedy = "allow egress to kube-system on port 53, UDP and TCP, or set networkPolicy.enabled: true, which does"
        yield Diagnosis(ERROR, f"networkpolicy/{names}", seen, remedy)
