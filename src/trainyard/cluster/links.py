"""Nodes between which the network is cut or slow, by what the pods on them say of each other.

No pod is believed alone. A dead process, pod or node says nothing, so the network is to blame where both sides say that
they lost the other; where a process sees by the other's heartbeat file that it lives, and gets no answer; or where a
pod gets no answer while the kubelet of the other's node answers.
"""

import re
from datetime import datetime
from typing import NamedTuple

from trainyard.cluster import kube
from trainyard.cluster.errors import RefusedError, UnreachableError
from trainyard.cluster.findings import Finding, since
from trainyard.cluster.lost_nodes import OUT_OF_SERVICE

SILENT = re.compile(r"rank \d+ on ([\w.-]+), pid \d+: no sign of life")  # of src/trainyard/telemetry/hang.py
SEEN = re.compile(r"rank \d+ on ([\w.-]+), pid \d+: alive by its file, but it no longer answers over the network")
UNREACHED = re.compile(r"([\w.-]+) runs, but port \d+ cannot be reached \(no answer|[( ]([\w.-]+): no answer")
SLOW = re.compile(r"^step +\d+/.*  (network: steps take [\d.]+ times as long as before, .*)$")
STEP = re.compile(r"^step +\d+/")
SETTLED = 20  # seconds after its start from which a pod's address is known to all
LAST_LINES = 8  # of a log, among which the last line of progress is looked for


class PodWords(NamedTuple):
    """A pod, and what was found of it."""

    pod: dict
    found: list[Finding]


class Pair(NamedTuple):
    """A finding of one pod that tells of another one, on another node."""

    finding: Finding
    mine: dict
    other: dict

    @property
    def nodes(self) -> str:
        """The names of both nodes, for a sentence."""
        return f"the nodes {node(self.mine)} and {node(self.other)}"


def said_of_network(log: str) -> str:
    """Return what the last line of progress in a log says of a slow network; empty where it says nothing."""
    steps = [line for line in log.splitlines() if STEP.match(line)]
    found = SLOW.match(steps[-1]) if steps else None
    return found[1] if found else ""


def name_nodes(words: list[PodWords], namespace: str, release: str, now: datetime) -> list[PodWords]:
    """Return the same, with the nodes and the remedy where the network between two of them is cut or slow."""
    hosts = {host(one.pod): one for one in words if node(one.pod) and not is_lost(one)}
    nodes = sorted({node(one.pod) for one in hosts.values()})

    def explain(finding: Finding, pod: dict) -> Finding:
        if finding.cause.startswith("network: steps take"):
            return explain_slow(finding, nodes, namespace, release)
        if told := find_cut(finding, pod, hosts):
            return explain_cut(Pair(finding, pod, told))
        if told := find_unreached(finding, pod, hosts, now):
            return explain_unreached(Pair(finding, pod, told), namespace)
        return finding

    return [
        PodWords(pod, [explain(one, pod) for one in found] if host(pod) in hosts else found) for pod, found in words
    ]


def find_cut(finding: Finding, pod: dict, hosts: dict[str, PodWords]) -> dict | None:
    """Return the pod on another node whose processes lived when those of this one lost them; None where none did."""
    for other in others(SEEN, finding, pod, hosts):
        return other.pod
    return next((one.pod for one in others(SILENT, finding, pod, hosts) if has_lost(one, host(pod))), None)


def find_unreached(finding: Finding, pod: dict, hosts: dict[str, PodWords], now: datetime) -> dict | None:
    """Return the pod on another node that this one does not reach although its kubelet answers; None for none."""
    for other in others(UNREACHED, finding, pod, hosts):
        if is_settled(pod, now) and is_settled(other.pod, now) and answers(other.pod):
            return other.pod
    return None


def others(pattern: re.Pattern[str], finding: Finding, pod: dict, hosts: dict[str, PodWords]) -> list[PodWords]:
    """Return the pods on other nodes that a finding names."""
    told = [hosts[one] for one in find_hosts(pattern, finding.cause) if one in hosts]
    return [one for one in told if node(one.pod) != node(pod)]


def explain_cut(pair: Pair) -> Finding:
    """Say that processes on two nodes, all alive, lost each other."""
    address = pair.other.get("status", {}).get("hostIP", node(pair.other))
    cause = f"the network between {pair.nodes} was cut: processes on both were alive. {pair.finding.cause}"
    check = f"kubectl debug node/{node(pair.mine)} -it --image=busybox -- ping -c 3 {address}"
    return pair.finding._replace(
        cause=cause,
        remedy=f"see whether it still is: {check}; if so, cordon the node that no other reaches. The pods are tried "
        "again, and wait for each other before training",
    )


def explain_unreached(pair: Pair, namespace: str) -> Finding:
    """Say that a pod does not reach another one although both nodes answer the API server."""
    cause = f"nothing passes between {pair.nodes}, and both answer Kubernetes: {pair.finding.cause}"
    mine, other = pair.mine["metadata"]["name"], host(pair.other)
    port = next((port for one in (pair.mine, pair.other) if (port := peers_port(one))), "")
    container = pair.finding.object.partition(" ")[2]
    address = pair.other.get("status", {}).get("podIP") or other
    check = (
        f"kubectl exec -n {namespace} {mine} -c {container} -- python -c "
        f"\"import socket; socket.create_connection(('{address}', {port}), 3)\" (no error: it passes)"
        if port and running(pair.mine)
        else f"kubectl debug node/{node(pair.mine)} -it --image=busybox -- ping -c 3 "
        + pair.other.get("status", {}).get("hostIP", node(pair.other))
    )
    return pair.finding._replace(
        cause=cause,
        remedy=f"see whether it still is so: {check}. Where it never worked, a NetworkPolicy, mesh or firewall keeps "
        "the pods apart: let them reach each other on all ports; else the network between the nodes is cut: cordon the "
        "node that no other reaches",
    )


def explain_slow(finding: Finding, nodes: list[str], namespace: str, release: str) -> Finding:
    """Say that the links between the nodes of a run became slow; one node has none."""
    if len(nodes) < 2:
        return Finding(finding.object.partition(" ")[0], "Running")
    shown = f"{', '.join(nodes[:4])}{f' and {len(nodes) - 4} more' if len(nodes) > 4 else ''}"
    two = "of two nodes neither can be named: compare the rate with the link's"
    them = "it names the slow node" if len(nodes) > 2 else two
    return finding._replace(
        cause=f"{finding.cause.removeprefix('network: ')}: a link between the nodes is slow ({shown})",
        remedy="set global.training.config.comm.probe: always, and upgrade: the run saves, resumes, and measures each "
        f"node's link first; {them}: trainyard logs {release} -n {namespace} | grep -A1 '^transport:'",
    )


def find_hosts(pattern: re.Pattern[str], cause: str) -> list[str]:
    """Return the hosts that a message names, without their domain."""
    return [next(filter(None, found.groups())).partition(".")[0] for found in pattern.finditer(cause)]


def has_lost(words: PodWords, other: str) -> bool:
    """Whether a pod says of another host that it has lost a rank on it."""
    return any(other in find_hosts(pattern, one.cause) for one in words.found for pattern in (SILENT, SEEN))


def is_lost(words: PodWords) -> bool:
    """Whether a pod is deleted, or its node does not answer."""
    return "deletionTimestamp" in words.pod["metadata"] or any(OUT_OF_SERVICE in one.remedy for one in words.found)


def host(pod: dict) -> str:
    """Return a pod's host name; those of a JobSet's pods are not their names."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def node(pod: dict) -> str:
    """Return the node of a pod; empty before it has one."""
    return str(pod["spec"].get("nodeName", ""))


def running(pod: dict) -> list[dict]:
    """Return the statuses of a pod's main containers that run."""
    return [one for one in pod.get("status", {}).get("containerStatuses", []) if "running" in one["state"]]


def is_settled(pod: dict, now: datetime) -> bool:
    """Whether no container of a pod began a moment ago, when others may still know the address of the pod before."""
    starts = [one["state"]["running"].get("startedAt") for one in running(pod)]
    return all(start and since(start, now) >= SETTLED for start in starts)


def answers(pod: dict) -> bool:
    """Whether the kubelet of a running pod's node answers: it alone has the pod's log."""
    try:
        return any(
            kube.logs(pod["metadata"]["name"], pod["metadata"]["namespace"], one["name"], tail=1)
            for one in running(pod)
        )
    except (RefusedError, UnreachableError):
        return False


def peers_port(pod: dict) -> str:
    """Return the port on which a pod answers the check before training."""
    variables = (one for box in pod["spec"].get("containers", []) for one in box.get("env", []))
    return next((str(one["value"]) for one in variables if one["name"] == "TRAINYARD_PEERS_PORT"), "")
