"""A cluster of three nodes, beside that of the other tests: pods, storage and policies across nodes, and faults."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import patience

# Soak: three nodes, and what enforces policies in them, take longer to build and start than `make test` has time for
pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.nodes, pytest.mark.soak]
ROOT = Path(__file__).resolve().parents[2]
STATE = Path("/var/lib/trainyard-nodes")
ENV = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "TRAINYARD_HOLD")} | {
    "TRAINYARD_NODES": "3",
    "TRAINYARD_STATE": str(STATE),
    "TRAINYARD_LINK": "trainyard3",
    "TRAINYARD_HOST_IP": "10.93.0.1",
    "TRAINYARD_NODE_IP": "10.93.0.2",
    "TRAINYARD_KUBECONFIG": str(STATE / "kubeconfig"),
    "TRAINYARD_UNPACKED_IMAGES": "own",  # it trains nothing
}
NODES = ["trainyard", "trainyard-2", "trainyard-3"]
# It serves the name of its node, and has the one volume
CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": "localhost/trainyard-node/base:1",
    "command": ["sh", "-c", "cd $(mktemp -d) && echo $NODE > node && exec python3 -m http.server"],
    "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    "readinessProbe": {"httpGet": {"path": "/node", "port": 8000}, "periodSeconds": 1},
}
VOLUME = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
PODS: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "each"},
    "spec": {
        "selector": {"matchLabels": {"app": "each"}},
        "template": {
            "metadata": {"labels": {"app": "each"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [CONTAINER], "volumes": [VOLUME]},
        },
    },
}
CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "shared"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
# Prints what each address serves, or nothing for one that does not answer
ASK = """\
import sys, urllib.request
for address in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(f"http://{address}:8000/node", timeout=3).read().decode().strip())
    except OSError:
        print()
"""
WRITE = ["sh", "-c", 'dd if=/dev/zero of="/shared/written-by-$NODE" bs=4k count=1 oflag=sync']
# Prints the seconds that 2 MiB take to the file server
SEND = """\
import os, time
before = time.monotonic()
with open("/shared/sent", "wb", buffering=0) as file:
    file.write(bytes(2**21))
    os.fsync(file.fileno())
print(time.monotonic() - before)
"""


def script(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run one of the cluster's scripts on the cluster of three nodes."""
    return patience.run([str(ROOT / "hack/cluster" / name), *args], env=ENV)


def kubectl(*args: str, stdin: str | None = None, check: bool = True) -> str:
    command = [str(ROOT / "build/bin/kubectl"), "--kubeconfig", str(STATE / "kubeconfig"), *args]
    done = patience.run(command, stdin)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout


def apply(*things: dict[str, Any]) -> None:
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": things}))


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> None:
    """Leave the other tests' cluster alone: this file has its own."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Three nodes with a pod on each; the value is what `up` printed."""
    STATE.mkdir(exist_ok=True)
    script("down")  # what a run of these tests left that was killed in the middle
    up = script("up")
    try:
        assert up.returncode == 0, up.stderr
        apply(CLAIM, PODS)
        kubectl("rollout", "status", "daemonset/each", "--timeout=600s")
        yield up.stderr
    finally:
        down = script("down")
    assert down.returncode == 0, down.stderr
    shutil.rmtree(STATE)


@contextlib.contextmanager
def fault(*words: str) -> Iterator[None]:
    """A fault while the block runs."""
    made = script("fault", *words)
    assert made.returncode == 0, made.stderr
    try:
        yield
    finally:
        undone = script("fault", "--undo", *words)
    assert undone.returncode == 0, undone.stderr
    assert not script("fault", "--list").stdout


def pods() -> dict[str, tuple[str, str]]:
    """Return name and address of the pod on each node."""
    items = json.loads(kubectl("get", "pods", "-l", "app=each", "-o", "json"))["items"]
    return {
        item["spec"]["nodeName"]: (item["metadata"]["name"], item["status"].get("podIP", ""))
        for item in items
        if not item["metadata"].get("deletionTimestamp")
    }


def inside(pod: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a pod."""
    at = [str(ROOT / "build/bin/kubectl"), "--kubeconfig", str(STATE / "kubeconfig"), "exec", pod, "--"]
    return patience.run([*at, *command])


def wait_for_answers(pod: str, addresses: list[str], answers: list[str]) -> None:
    """Wait until a pod gets these answers from the addresses, "" where there is none: a busy machine is late."""
    got: list[str] = []

    def asked() -> bool:
        got[:] = inside(pod, "python3", "-c", ASK, *addresses).stdout.splitlines()
        return got == answers

    patience.wait(lambda: f"{pod} got {got} from {addresses}, not {answers}", asked, patience.still)


def writes(pod: str) -> bool:
    """Whether a pod can write to the volume."""
    return inside(pod, *WRITE).returncode == 0


def hangs(pod: str) -> bool:
    """Whether a pod's write to the volume has not ended after ten seconds; nothing but the server's answer ends it."""
    command = [str(ROOT / "build/bin/kubectl"), "--kubeconfig", str(STATE / "kubeconfig"), "exec", pod, "--", *WRITE]
    try:
        subprocess.run(command, capture_output=True, timeout=10, check=True)
    except subprocess.TimeoutExpired:
        return True
    return False


def ready(node: str) -> str:
    path = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    return kubectl("get", "node", node, "-o", path)


def test_pods_reach_those_of_other_nodes_and_services(cluster: str) -> None:
    assert "ready after" in cluster
    assert [ready(node) for node in NODES] == ["True"] * 3
    there = pods()
    assert sorted(there) == NODES
    addresses = [there[node][1] for node in NODES]
    for node in NODES:
        wait_for_answers(there[node][0], addresses, NODES)
        assert inside(there[node][0], "getent", "hosts", "kubernetes.default.svc.cluster.local").returncode == 0


def test_a_file_written_on_one_node_is_read_on_another(cluster: str) -> None:
    there = pods()
    written = inside(there["trainyard-2"][0], "sh", "-c", "echo from $NODE > /shared/note")
    assert written.returncode == 0, written.stderr
    assert inside(there["trainyard-3"][0], "cat", "/shared/note").stdout == "from trainyard-2\n"


@pytest.fixture(scope="module")
def tenant(cluster: str) -> dict[str, str]:
    """Two pods of a job, on two nodes, and one of somebody else on the node of the second; returns their addresses."""
    job = {"app.kubernetes.io/name": "pytorchjob", "app.kubernetes.io/instance": "demo"}
    things = [("master", "trainyard-2", job), ("worker", "trainyard-3", job), ("stranger", "trainyard-3", {})]
    containers = [{**CONTAINER, "volumeMounts": []}]
    apply(*(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
         "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": containers}}
        for name, node, labels in things
    ))  # fmt: skip
    kubectl("wait", "--for=condition=Ready", "--timeout=600s", *(f"pod/{name}" for name, _, _ in things))
    return {name: kubectl("get", "pod", name, "-o", "jsonpath={.status.podIP}") for name, _, _ in things}


def apply_policies(*settings: str) -> None:
    """Apply the chart's NetworkPolicies, with these settings."""
    template = [str(ROOT / "build/bin/helm3"), "template", "demo", str(ROOT / "charts/trainyard")]
    values = ["-f", str(ROOT / "examples/demo.yaml"), "--set", "global.image.registry=localhost,global.image.tag=none"]
    rendered = patience.run([*template, *values, *settings, "--show-only", "templates/networkpolicy.yaml"])
    assert rendered.returncode == 0, rendered.stderr
    kubectl("apply", "-f", "-", stdin=rendered.stdout)


def test_the_charts_policies_keep_strangers_from_a_jobs_pods_on_any_node(tenant: dict[str, str]) -> None:
    everybody, on = list(tenant.values()), ["trainyard-2", "trainyard-3", "trainyard-3"]
    wait_for_answers("stranger", everybody, on)  # nothing closes them yet
    apply_policies()
    wait_for_answers("stranger", everybody, ["", "", on[2]])
    for pod in ("master", "worker"):
        wait_for_answers(pod, everybody, on)


def test_with_egress_closed_they_reach_each_other_and_name_servers_alone(tenant: dict[str, str]) -> None:
    everybody, on = list(tenant.values()), ["trainyard-2", "trainyard-3", "trainyard-3"]
    apply_policies("--set", "networkPolicy.enabled=true")
    wait_for_answers("master", everybody, [*on[:2], ""])
    assert inside("worker", "getent", "hosts", "kubernetes.default.svc.cluster.local").returncode == 0
    kubectl("delete", "networkpolicy", "--all")
    wait_for_answers("stranger", everybody, on)


def test_a_node_cut_from_the_others_still_has_api_server_and_storage(cluster: str) -> None:
    there = pods()
    one, two, three = (there[node] for node in NODES)
    with fault("cut", "trainyard-2", "nodes"):
        wait_for_answers(two[0], [one[1], two[1], three[1]], ["", "trainyard-2", ""])
        wait_for_answers(one[0], [two[1], three[1]], ["", "trainyard-3"])
        assert writes(two[0])
    wait_for_answers(two[0], [one[1], three[1]], ["trainyard", "trainyard-3"])


def test_a_full_file_server_refuses_bytes_until_it_has_room(cluster: str) -> None:
    pod = pods()["trainyard-3"][0]
    with fault("storage", "full"):
        said = inside(pod, "sh", "-c", "echo more > /shared/more")
        assert "No space left on device" in said.stderr
    patience.wait("it has no room", lambda: writes(pod), patience.still)  # GlusterFS looks for room every few seconds


def test_calls_hang_while_the_file_server_does(cluster: str) -> None:
    pod = pods()["trainyard-2"][0]
    with fault("storage", "hang"):
        assert hangs(pod)
    assert writes(pod)


def test_a_slow_cable_has_its_rate(cluster: str) -> None:
    pod = pods()["trainyard-3"][0]
    with fault("slow", "trainyard-3", "8mbit"):
        took = float(inside(pod, "python3", "-c", SEND).stdout)
    assert took > 1.9  # 2 MiB at 1 MB/s; a busy machine takes longer


@pytest.mark.parametrize("what", ["api", "etcd"])
def test_the_cluster_keeps_what_it_has_while_a_part_of_the_control_plane_is_down(cluster: str, what: str) -> None:
    before = pods()
    with fault("down", what):
        assert not kubectl("get", "nodes", "--request-timeout=2s", check=False)
    assert pods() == before


def test_an_operator_that_is_down_makes_no_pods_until_it_is_back(cluster: str) -> None:
    asked = ["create", "--dry-run=server", "-f", str(ROOT / "hack/cluster/addons/probe.yaml")]
    with fault("down", "training-operator"):
        assert not kubectl(*asked, check=False)  # its webhook does not answer
    assert kubectl(*asked)


def test_a_killed_node_becomes_not_ready_and_comes_back_with_its_pod(cluster: str) -> None:
    with fault("kill", "trainyard-2"):
        patience.wait("trainyard-2 is still Ready", lambda: ready("trainyard-2") == "Unknown", patience.still)
        assert ready("trainyard-3") == "True"
    assert ready("trainyard-2") == "True"
    kubectl("rollout", "status", "daemonset/each", "--timeout=600s")
    there = pods()
    wait_for_answers(there["trainyard"][0], [there["trainyard-2"][1]], ["trainyard-2"])
    assert inside(there["trainyard-2"][0], "cat", "/shared/note").stdout == "from trainyard-2\n"


def test_a_fault_that_the_first_node_cannot_have_is_refused(cluster: str) -> None:
    refused = script("fault", "kill", "trainyard")
    assert refused.returncode != 0
    assert "trainyard-2 trainyard-3" in refused.stderr
