"""trainyard why: a network that is cut or slow between two nodes, and what looks alike and is neither."""

from typing import Any

import pytest

from tests.util.explained import OLD, YOUNG, condition, event, explain, says, thing
from trainyard.cluster import kube
from trainyard.cluster.errors import UnreachableError
from trainyard.telemetry.hang import Missing, find_missing, hang_message

MASTER, WORKER = "demo-x-master-0", "demo-x-worker-0"
SLOW = "  network: steps take 4.2 times as long as before, by communication on every rank"
LINE = "step  57/1000  epoch 1/10  loss 2.1000  lr 0.1  120 img/s  goodput 40 %  eta 0:10:00"
UNREACHED = "preflight: waiting for 1 of 1 peers (demo-x-master-0: no answer), 3590 s left"
WAS_CUT = "the network between the nodes gpu-1 and gpu-2 was cut: processes on both were alive."


def pod(name: str, node: str, state: dict, phase: str = "Running", **more: Any) -> dict:
    box = {"name": "pytorch", "env": [{"name": "TRAINYARD_PEERS_PORT", "value": "23400"}]}
    status = {"phase": phase, "containerStatuses": [{"name": "pytorch", "state": state}], "hostIP": f"ip-{node}"}
    conditions = [condition("Ready", status=more.pop("ready", "True"))]
    where = {"nodeName": node, "containers": [box], **more.pop("spec", {})}
    return thing("Pod", name, status | {"conditions": conditions, "podIP": f"ip-{name}"}, where, namespace="vision")


def runs(name: str, node: str, started: str = OLD, **more: Any) -> dict:
    return pod(name, node, {"running": {"startedAt": started}}, **more)


def lost(name: str, node: str, other: str, *, seen: bool = False) -> dict:
    """Return a pod whose rank ended because it lost the one on another."""
    theirs = {"rank": 1, "host": other, "pid": 1}
    missing: list[Missing] = find_missing({1: theirs}, [] if seen else [1], [1] if seen else [])
    return ended(name, node, hang_message(0, "step", 9, 61.0, missing))


def ended(name: str, node: str, message: str) -> dict:
    return pod(name, node, {"terminated": {"exitCode": 138, "reason": "Error", "message": message}}, "Failed")


@pytest.fixture
def logs(monkeypatch):
    """Logs by pod; of others the kubelet does not answer."""
    held: dict[str, str] = {}

    def read(name: str, *_: Any, **__: Any) -> str:
        if name not in held:
            raise UnreachableError("no route to host")
        return held[name]

    monkeypatch.setattr(kube, "logs", read)
    return held


def test_processes_that_lost_each_other_were_cut():
    text = explain(pods=[lost(MASTER, "gpu-1", WORKER), lost(WORKER, "gpu-2", MASTER)])
    says(text, WAS_CUT, "kubectl debug node/gpu-1 -it --image=busybox -- ping -c 3 ip-gpu-2")
    assert "gpu-2 and gpu-1 was cut" in text


def test_a_process_that_sees_the_others_file_is_believed_alone(logs):
    logs[WORKER] = LINE
    says(explain(pods=[lost(MASTER, "gpu-1", WORKER, seen=True), runs(WORKER, "gpu-2")]), WAS_CUT, "ping -c 3 ip-gpu-2")
    says(explain(pods=[lost(MASTER, "gpu-1", WORKER, seen=True)]), "no longer answers", "whether the nodes reach")


def test_one_that_is_stopped_or_dead_was_not_cut(logs):
    logs[WORKER] = LINE
    killed = pod(WORKER, "gpu-2", {"terminated": {"exitCode": 137, "reason": "Error"}}, "Failed")
    for other in (
        runs(WORKER, "gpu-2"),
        killed,
        lost(WORKER, "gpu-2", "demo-x-worker-1"),
        lost(WORKER, "gpu-1", MASTER),
    ):
        text = explain(pods=[lost(MASTER, "gpu-1", WORKER), other])
        assert "cut:" not in text, text
        assert "no sign of life" in text


def test_a_lost_node_is_not_cut():
    away = runs(WORKER, "gpu-2", ready="False")
    for seen in (True, False):
        text = explain(
            pods=[lost(MASTER, "gpu-1", WORKER, seen=seen), away], events=[event(away, "NodeNotReady", "gone")]
        )
        assert "was cut" not in text
        assert "its node gpu-2 is not ready" in text


def test_a_pod_that_another_one_does_not_reach_while_both_nodes_answer(logs):
    logs |= {MASTER: LINE, WORKER: UNREACHED}
    connect = f"import socket; socket.create_connection(('ip-{MASTER}', 23400), 3)"
    passes = f'kubectl exec -n vision {WORKER} -c pytorch -- python -c "{connect}"'
    cause = f"nothing passes between the nodes gpu-2 and gpu-1, and both answer Kubernetes: {UNREACHED}"
    says(explain(pods=[runs(MASTER, "gpu-1"), runs(WORKER, "gpu-2")]), cause, passes)
    of_a_jobset = runs(f"{MASTER}-x7k2p", "gpu-1", spec={"hostname": MASTER})
    logs |= {f"{MASTER}-x7k2p": LINE, WORKER: UNREACHED.replace(MASTER, f"{MASTER}.demo-x")}
    assert "nothing passes between the nodes gpu-2 and gpu-1" in explain(pods=[of_a_jobset, runs(WORKER, "gpu-2")])
    gave_up = f"{MASTER} runs, but port 23400 cannot be reached (no answer for 25 s): a NetworkPolicy, mesh or firewall"
    over = ended(WORKER, "gpu-2", gave_up)
    says(explain(pods=[runs(MASTER, "gpu-1"), over]), "nothing passes between", "debug node/gpu-2 -it")


def test_pods_that_are_not_reached_for_another_reason(logs):
    logs |= {MASTER: LINE, WORKER: UNREACHED}
    node_is_dead = dict(logs)
    for master, worker in (
        (runs(MASTER, "gpu-1"), runs(WORKER, "gpu-1")),  # one node
        (runs(MASTER, "gpu-1", YOUNG), runs(WORKER, "gpu-2")),  # others may still have the address of the pod before
        (runs(MASTER, "gpu-1"), runs(WORKER, "gpu-2", YOUNG)),
    ):
        text = explain(pods=[master, worker])
        assert "nothing passes" not in text, text
        assert "a NetworkPolicy, mesh or firewall keeps the pods apart" in text
    for why in (
        "its name does not resolve: the pod has not started",
        "connection refused",
        "it accepts, but says nothing",
    ):
        logs[WORKER] = UNREACHED.replace("no answer", why)
        assert "nothing passes" not in explain(pods=[runs(MASTER, "gpu-1"), runs(WORKER, "gpu-2")])
    logs.clear()
    logs[WORKER] = node_is_dead[WORKER]  # Kubernetes takes 50 s to notice
    assert "nothing passes" not in explain(pods=[runs(MASTER, "gpu-1"), runs(WORKER, "gpu-2")])


@pytest.mark.parametrize(("third", "names"), [("gpu-2", "of two nodes neither"), ("gpu-3", "it names the slow node")])
def test_a_slow_link(logs, third, names):
    logs |= {MASTER: f"{LINE}{SLOW}\nepoch 1/10  validated 9 samples", WORKER: "", "demo-x-worker-1": ""}
    pods = [runs(MASTER, "gpu-1"), runs(WORKER, "gpu-2"), runs("demo-x-worker-1", third)]
    cause = "steps take 4.2 times as long as before, by communication on every rank: a link between the nodes is slow"
    text = explain(pods=pods)
    says(text, f"{cause} (gpu-1, gpu-2{', gpu-3' if third == 'gpu-3' else ''})", "comm.probe: always")
    assert names in text
    assert text.count("because") == 1


def test_a_link_that_is_not_slow(logs):
    pods = [runs(MASTER, "gpu-1"), runs(WORKER, "gpu-2")]
    behind = "  slowest rank 1: 60 % of the time, by data"
    for log in (LINE, f"{LINE}{SLOW}\n{LINE}", f"{LINE}{behind}", f"the user's: {SLOW}"):
        logs |= {MASTER: log, WORKER: ""}
        assert "because" not in explain(pods=pods), log
    logs[MASTER] = f"{LINE}{SLOW}"
    assert "because" not in explain(pods=[pods[0], runs(WORKER, "gpu-1")])  # both are on one node
