"""The API server: its version, clocks, the control plane's leases, and APIs that other servers answer."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from trainyard.cluster.certificates import Validity
from trainyard.cluster.checks import placement
from trainyard.cluster.checks.diagnosis import ERROR, WARNING, Check, Diagnosis, check, several
from trainyard.cluster.findings import since
from trainyard.cluster.survey import ClusterSurvey

LEAST, TESTED = (1, 29), (1, 36)  # docs/compatibility.md
CLOCK = 5.0  # seconds by which clocks may differ
SIGNED = 300.0  # seconds from which signed requests are refused, as object stores and registries do
RENEWED = 60.0  # seconds within which a leader or a kubelet renews its lease, or has stopped
ENDING = 7 * 86400.0  # seconds before its end in which a certificate is worth a word
# What an API server says that cannot store anything, in an answer to a probe
UNSTORED = re.compile(r"etcdserver: .*|database space exceeded", re.S)
LEADERS = {"kube-scheduler": "pods are placed on no node", "kube-controller-manager": "no job, claim or pod goes on"}


def check_version(text: str) -> Diagnosis | None:
    """Say that an API server is older than the chart works with."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    if not found or (int(found[1]), int(found[2])) >= LEAST:
        return None
    seen = f"Kubernetes is {text}, and the chart needs {'.'.join(map(str, LEAST))} or later"
    return Diagnosis(ERROR, "kubernetes", seen, "update the cluster (docs/compatibility.md)")


def check_own_clock(ahead: float) -> Diagnosis | None:
    """Say that this machine's clock and the API server's differ."""
    if abs(ahead) < CLOCK:
        return None
    seen = f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the API server's"
    remedy = "set both clocks by NTP (timedatectl set-ntp true): logins, certificates and signed requests are refused"
    return Diagnosis(ERROR if abs(ahead) >= SIGNED else WARNING, "clock", seen, remedy)


def last_write(lease: dict) -> str:
    """Return when the API server last wrote a lease, by its own clock; empty where it does not say."""
    times = [one.get("time", "") for one in lease["metadata"].get("managedFields") or []]
    return max(times, default="")


def skew(lease: dict, now: datetime) -> float:
    """Return the seconds by which the clock of a lease's holder is ahead of the API server's, as far as it shows.

    The server notes when it stored the renewal, to the second. Without that note only a renewal that lies in the
    future tells anything: one in the past may be an old one.
    """
    renewed = lease["spec"].get("renewTime")
    if not renewed:
        return 0.0
    if at := last_write(lease):
        late = since(renewed, datetime.fromisoformat(at.replace("Z", "+00:00")))
        return -late if late < 0 else -max(0.0, late - 1.0)
    return max(0.0, -since(renewed, now))


def check_clocks(leases: list[dict], nodes: list[dict], now: datetime) -> Iterator[Diagnosis]:
    """Name nodes whose clock differs from the API server's."""
    known = {node["metadata"]["name"]: node for node in nodes}
    for lease in leases:
        name, meta = lease["metadata"]["name"], lease["metadata"]
        if meta.get("namespace") != "kube-node-lease" or name not in known:
            continue
        ahead = skew(lease, now)
        age = since(lease["spec"]["renewTime"], now) if lease["spec"].get("renewTime") else 0.0
        if not last_write(lease) and age > RENEWED and placement.is_ready(known[name]):
            ahead = -age  # it is renewed every 10 s, and says another time
        if abs(ahead) >= CLOCK:
            seen = f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the API server's"
            level = ERROR if abs(ahead) >= SIGNED else WARNING
            yield Diagnosis(level, f"node/{name}", seen, "set the node's clock by NTP (timedatectl set-ntp true on it)")


def check_heartbeats(nodes: list[dict], leases: list[dict], now: datetime) -> Iterator[Diagnosis]:
    """Name nodes without a lease whose last heartbeat lies in the future."""
    held = {lease["metadata"]["name"] for lease in leases}
    for node in nodes:
        times = [one.get("lastHeartbeatTime") for one in node.get("status", {}).get("conditions") or []]
        beats = [time for time in times if time]
        ahead = -since(max(beats), now) if beats and node["metadata"]["name"] not in held else 0.0
        if ahead >= CLOCK:
            seen = f"its clock is {ahead:.0f} s ahead of the API server's"
            level = ERROR if ahead >= SIGNED else WARNING
            yield Diagnosis(
                level, f"node/{node['metadata']['name']}", seen, "set the node's clock by NTP (timedatectl)"
            )


def check_leaders(leases: list[dict], now: datetime) -> Iterator[Diagnosis]:
    """Name parts of the control plane that have stopped renewing their lease."""
    for lease in leases:
        name, renewed = lease["metadata"]["name"], lease["spec"].get("renewTime")
        if lease["metadata"].get("namespace") == "kube-system" and name in LEADERS and renewed:
            age = since(renewed, now)
            if age > RENEWED:
                seen = f"it has not renewed its lease for {age:.0f} s: {LEADERS[name]}"
                yield Diagnosis(ERROR, name, seen, f"start it again: kubectl -n kube-system get pods | grep {name}")


def check_certificates(certificates: Iterable[tuple[str, Validity]], now: datetime) -> Iterator[Diagnosis]:
    """Name certificates that end within a week, and in the last tenth of their time: some live for hours."""
    renewed = "kubeadm certs renew all; k3s and RKE2 do so when they start; a cloud does so by itself"
    remedies = {
        "server": ("the API server", f"renew the control plane's certificates ({renewed})"),
        "user": ("this user", "get a new kubeconfig from who runs the cluster"),
    }
    for who, (begin, end) in certificates:
        left, (whose, remedy) = (end - now).total_seconds(), remedies[who]
        if left < min(ENDING, (end - begin).total_seconds() / 10):
            seen = f"the certificate of {whose} ends in {left / 3600:.0f} hours: then no command reaches the cluster"
            yield Diagnosis(WARNING, f"certificate/{who}", seen, remedy)


def check_etcd(refusals: Iterable[str]) -> Iterator[Diagnosis]:
    """Name an etcd that stores nothing, by what the API server said of probes."""
    for text in refusals:
        if found := UNSTORED.search(text):
            remedy = "make room in etcd: compact and defragment it, then etcdctl alarm disarm (https://etcd.io/docs)"
            yield Diagnosis(ERROR, "etcd", f"nothing can be created: {found[0]}", remedy)
            return


def check_services(services: list[dict]) -> Iterator[Diagnosis]:
    """Name APIs whose own server does not answer: lists of all kinds fail, and namespaces stay Terminating."""
    for service in services:
        for one in service.get("status", {}).get("conditions") or []:
            if one["type"] == "Available" and one["status"] == "False":
                name = service["metadata"]["name"]
                seen = f"this API is not available ({one.get('reason', '')}): namespaces cannot be deleted"
                remedy = f"start the server behind it, or kubectl delete apiservice {name}"
                yield Diagnosis(WARNING, f"apiservice/{name}", seen, remedy)


def examine(survey: ClusterSurvey, refusals: Iterable[str] = ()) -> Check:
    """Check the API server; `refusals`: why probes were refused."""
    nodes, leases = survey.of("nodes"), survey.of("leases")
    wrong = [one for one in (check_version(survey.version), check_own_clock(survey.ahead)) if one]
    if survey.failing:
        seen = f"it is not ready: {survey.failing}"
        wrong.append(
            Diagnosis(ERROR, "api server", seen, "see its log, and etcd's: kubectl get --raw '/readyz?verbose'")
        )
    wrong += [*check_certificates(survey.certificates, survey.now), *check_etcd(refusals)]
    slow = [*check_clocks(leases, nodes, survey.now), *check_heartbeats(nodes, leases, survey.now)]
    wrong += [*slow, *check_leaders(leases, survey.now), *check_services(survey.of("apiservices"))]
    tested = f"{TESTED[0]}.{TESTED[1]}"
    same = survey.version.startswith(f"v{tested}.")
    heard = [one["metadata"]["name"] for one in leases if one["metadata"].get("namespace") == "kube-node-lease"]
    sound = [f"Kubernetes {survey.version}" + (", as tested" if same else f" ({tested} was tested)")]
    if heard and not slow and not check_own_clock(survey.ahead):
        sound.append(f"the clocks of {several(sorted(heard), 3)} and of this machine agree")
    unproven = [] if heard or "leases" in survey.unseen else ["clocks of the nodes: no leases in kube-node-lease"]
    return check("kubernetes", sound, wrong, unproven)
