"""What a shared namespace asks of its tenants: counted resources, no tokens, no open ports, small objects."""

import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import helm

each = pytest.mark.parametrize("values", [*helm.CI, *helm.EXAMPLES], ids=lambda path: path.stem)
MOST_STORED = 400 << 10
OUTSIDE = "93.184.216.34"  # what stands for an address outside the cluster
CLOSED = helm.merged(helm.everything(), helm.at("networkPolicy.enabled", True))
DNS = {"kubernetes.io/metadata.name": "kube-system"}


def pods(node: Any) -> Iterator[dict]:
    """Yield the pod templates of a document, inside custom resources too."""
    if isinstance(node, dict):
        if "containers" in node.get("spec", {}):
            yield node
            return
        node = list(node.values())
    for item in node if isinstance(node, list) else []:
        yield from pods(item)


def all_pods(values: helm.Values | Path) -> list[dict]:
    return [pod for document in helm.documents(helm.template(values)) for pod in pods(document)]


@each
def test_a_resource_quota_can_count_every_container(values: Path):
    for pod in all_pods(values):
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            resources = container["resources"]
            for name in ("cpu", "memory"):
                assert name in resources.get("requests", {}) or name in resources.get("limits", {}), container["name"]


@each
def test_no_pod_gets_a_token_or_a_sidecar(values: Path):
    for pod in all_pods(values):
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["enableServiceLinks"] is False
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"


def test_shared_settings_reach_every_pod():
    shared = {
        "labels": {"example.com/team": "vision"},
        "serviceAccountName": "training",
        "image": {"pullSecrets": ["regcred"]},
    }
    found = all_pods(helm.merged(helm.everything(), {"global": shared}))
    # The dataset's, the evaluation's, Master, Worker, Launcher, Worker, two runtimes of TrainJobs, the file browser's
    assert len(found) == 9
    for pod in found:
        assert pod["metadata"]["labels"]["example.com/team"] == "vision"
        assert pod["spec"]["serviceAccountName"] == "training"
        assert pod["spec"]["imagePullSecrets"] == [{"name": "regcred"}]


@each
def test_every_container_leaves_its_last_word(values: Path):
    for pod in all_pods(values):
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_stored_release_is_small():
    lines = "".join(f"{json.dumps(helm.yaml.safe_load(path.read_text()))}\n" for path in helm.CI)
    sizes = [json.loads(line)["stored"] for line in helm.run("render", "-stored", helm.CHART, stdin=lines).splitlines()]
    print(f"\nthe stored release has {max(sizes):,} bytes at most")
    assert len(sizes) == len(helm.CI)
    assert all(10_000 < size <= MOST_STORED for size in sizes), sizes


# ------------------------------------------------------------------ allowed connections, by the rules of NetworkPolicy


def selects(selector: dict, labels: dict[str, str]) -> bool:
    """Whether a label selector matches: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels."""
    for rule in selector.get("matchExpressions", []):
        value, among = labels.get(rule["key"]), rule.get("values", [])
        fits = {"In": value in among, "NotIn": value not in among, "Exists": value is not None}
        if not fits.get(rule["operator"], value is None):
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def block(peer: dict) -> str:
    """The addresses of a peer; none of a peer that is pods."""
    return peer.get("ipBlock", {}).get("cidr", "255.255.255.255/32")


def allowed(rules: list[dict], side: str, pod: dict[str, str] | None, namespace: dict[str, str], port: int) -> bool:
    """Whether rules of one direction let a peer in or out; `pod` is None for an address outside the cluster."""
    for rule in rules:
        peers, ports = rule.get(side), rule.get("ports")
        if ports and all(one.get("port") != port for one in ports):
            continue
        if not peers:
            return True
        for peer in peers:
            if pod is None or "ipBlock" in peer:
                if pod is None and ipaddress.ip_address(OUTSIDE) in ipaddress.ip_network(block(peer)):
                    return True
                continue
            here = namespace == {} if "namespaceSelector" not in peer else selects(peer["namespaceSelector"], namespace)
            if here and selects(peer.get("podSelector", {}), pod):
                return True
    return False


def may_connect(policies: list[dict], source: dict | None, target: dict | None, port: int, namespace: dict) -> bool:
    """Whether pods with these labels may connect; `namespace` holds the labels of the other one, {} is the same."""

    def about(pod: dict | None, direction: str) -> list[dict]:
        specs = [policy["spec"] for policy in policies if pod is not None]
        return [one for one in specs if direction in one["policyTypes"] and selects(one["podSelector"], pod or {})]

    out, into = about(source, "Egress"), about(target, "Ingress")
    leaves = not out or any(allowed(spec.get("egress", []), "to", target, namespace, port) for spec in out)
    enters = not into or any(allowed(spec.get("ingress", []), "from", source, namespace, port) for spec in into)
    return leaves and enters


@pytest.fixture(scope="module")
def closed() -> tuple[list[dict], dict[str, dict[str, str]]]:
    """The policies of a release, and the labels of its pods by part and number."""
    documents = helm.documents(helm.template(CLOSED))
    labels = {}
    for document in documents:
        for number, pod in enumerate(pods(document)):
            kind = "Evaluation" if "-evaluate-" in document["metadata"]["name"] else document["kind"]
            labels[f"{kind}-{number}"] = pod["metadata"]["labels"]
    return [d for d in documents if d["kind"] == "NetworkPolicy"], labels


def test_the_pods_of_a_job_reach_each_other_on_any_port(closed):
    policies, labels = closed
    for job in ("PyTorchJob", "MPIJob"):
        for port in (22, 2222, 23400, 23456, 41234):
            assert may_connect(policies, labels[f"{job}-0"], labels[f"{job}-1"], port, {})
            assert may_connect(policies, labels[f"{job}-1"], labels[f"{job}-0"], port, {})


def test_nobody_else_reaches_them(closed):
    policies, labels = closed
    strangers = [
        {"app.kubernetes.io/name": "pytorchjob", "app.kubernetes.io/instance": "other"},
        {"app": "web"},
        labels["Job-0"],
    ]
    for pod in ("PyTorchJob-0", "PyTorchJob-1", "MPIJob-0", "MPIJob-1"):
        for stranger in strangers:
            assert not may_connect(policies, stranger, labels[pod], 23456, {})
        assert not may_connect(policies, labels[pod], {"app": "web"}, 80, {})
        assert not may_connect(policies, labels[pod], None, 443, {})
    assert not may_connect(policies, labels["PyTorchJob-0"], labels["MPIJob-0"], 2222, {})
    assert not may_connect(policies, {"app": "web"}, labels["Job-0"], 80, {})


def test_names_are_resolved_and_the_dataset_is_fetched(closed):
    policies, labels = closed
    for part, pod in labels.items():
        assert may_connect(policies, pod, {"k8s-app": "kube-dns"}, 53, DNS) == (part != "Deployment-0")
        assert not may_connect(policies, pod, {"k8s-app": "kube-dns"}, 9153, DNS)
    assert may_connect(policies, labels["Job-0"], None, 443, {})
    assert not may_connect(policies, labels["Job-0"], None, 22, {})


def test_the_file_browser_reaches_nothing_and_only_named_peers_reach_it(closed):
    policies, labels = closed
    browser = labels["Deployment-0"]
    assert not may_connect(policies, browser, labels["Job-0"], 80, {})
    assert not may_connect(policies, browser, None, 443, {})
    controller, home = {"app": "ingress"}, {"kubernetes.io/metadata.name": "ingress"}
    assert not may_connect(policies, controller, browser, 8080, home)
    rules = helm.at("networkPolicy.filebrowser.ingress", [{"from": [{"namespaceSelector": {"matchLabels": home}}]}])
    opened = [d for d in helm.documents(helm.template(helm.merged(CLOSED, rules))) if d["kind"] == "NetworkPolicy"]
    assert may_connect(opened, controller, browser, 8080, home)
    assert not may_connect(opened, controller, browser, 8080, {"kubernetes.io/metadata.name": "other"})


@pytest.fixture(scope="module")
def default() -> list[dict]:
    """The policies of the same release where values say nothing about them, with metrics on."""
    metrics = helm.at("global.metrics", {"enabled": True, "port": 9400})
    documents = helm.documents(helm.template(helm.merged(helm.everything(), metrics)))
    return [d for d in documents if d["kind"] == "NetworkPolicy"]


def test_by_default_only_ones_own_pods_reach_the_ports_on_which_a_job_meets(closed, default):
    _, labels = closed
    # torch's rendezvous and process group, MPI's ssh, the check of the peers, and what NCCL and Gloo choose
    for port in (29400, 29500, 23456, 2222, 23400, 41234):
        for job in ("PyTorchJob", "MPIJob"):
            assert may_connect(default, labels[f"{job}-0"], labels[f"{job}-1"], port, {})
            assert may_connect(default, labels[f"{job}-1"], labels[f"{job}-0"], port, {})
            for stranger in ({"app": "web"}, labels["Job-0"], labels["Deployment-0"]):
                assert not may_connect(default, stranger, labels[f"{job}-0"], port, {})
        assert not may_connect(default, labels["PyTorchJob-0"], labels["MPIJob-0"], port, {})
    assert not may_connect(default, {"app": "web"}, labels["Job-0"], 80, {})


def test_by_default_prometheus_and_readers_of_the_page_still_connect(closed, default):
    _, labels = closed
    prometheus, monitoring = {"app": "prometheus"}, {"kubernetes.io/metadata.name": "monitoring"}
    assert may_connect(default, prometheus, labels["PyTorchJob-0"], 9400, monitoring)
    assert not may_connect(default, prometheus, labels["PyTorchJob-0"], 29400, monitoring)
    controller, home = {"app": "ingress"}, {"kubernetes.io/metadata.name": "ingress"}
    assert may_connect(default, controller, labels["Deployment-0"], 8080, home)
    assert not may_connect(default, controller, labels["Deployment-0"], 8081, home)


def test_by_default_pods_reach_what_they_like(closed, default):
    _, labels = closed
    for pod in labels.values():
        assert may_connect(default, pod, None, 443, {})
        assert may_connect(default, pod, {"app": "web"}, 80, {"kubernetes.io/metadata.name": "other"})


def test_the_dataset_does_not_ask_the_metadata_service_of_a_cloud(closed):
    (rule,) = [p["spec"]["egress"][1] for p in closed[0] if p["metadata"]["name"].endswith("-dataset")]
    blocks = [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]
    for address in (
        "169.254.169.254", "fd00:ec2::254", "fd20:ce::254",  # instances of Amazon, Google, Azure and others
        "169.254.170.2", "169.254.170.23", "fd00:ec2::23",  # Amazon's containers and pods
        "100.100.100.200", "168.63.129.16",  # Alibaba; Azure's WireServer
    ):  # fmt: skip
        asked = ipaddress.ip_address(address)
        holding = [b for b in blocks if asked in ipaddress.ip_network(b["cidr"])]
        assert holding
        assert all(any(asked in ipaddress.ip_network(one) for one in b["except"]) for b in holding)
    assert any(ipaddress.ip_address(OUTSIDE) in ipaddress.ip_network(b["cidr"]) for b in blocks)


def test_without_policies_everything_is_open(closed):
    _, labels = closed
    assert may_connect([], {"app": "web"}, labels["MPIJob-0"], 2222, {})
