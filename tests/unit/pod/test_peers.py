"""Peers on loopback: each pod is an address of 127.0.0.0/8 with real sockets."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import pytest

from tests import patience, ports
from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.pod import peers, presence

JOB = "demo-pytorchjob-01234567"
PODS = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
MASTER_FORM = {"TRAINYARD_JOB": JOB, "TRAINYARD_PEERS_PORT": "23400", "PET_NNODES": "3", "PET_MASTER_PORT": "23456"}


@pytest.fixture
def port():
    """A port that is free on all of these addresses, as the next two are."""
    return ports.free(3)


@pytest.fixture
def servers():
    """Sockets that are closed at the end."""
    opened = []
    yield opened
    for server in opened:
        server.close()


def plan_of(me: str, port: int, **other) -> peers.PeerPlan:
    """A pod's plan; it waits long, and where it fails, `bound` is what the test waits for."""
    values = {"least": len(PODS), "port": port, "rendezvous": port + 1, "wait": patience.IDLE, "bound": patience.IDLE}
    return peers.PeerPlan(JOB, me, PODS, **(values | other))


def run_all(what: list[peers.PeerPlan], between: Callable[[], object] = lambda: None) -> dict[str, object]:
    """Check as all these pods, which start in this order, with something between them; what each ended with."""
    ended: dict[str, object] = {}
    over = threading.Barrier(len(what))

    def one(plan: peers.PeerPlan) -> None:
        listener = presence.Listener(plan.job, plan.port, plan.me)
        try:
            peers.reach(plan, listener, every=0.1)
            ended[plan.me] = "reached"
        except ExitError as error:
            ended[plan.me] = error
        over.wait(patience.IDLE)  # a pod keeps listening
        listener.close()

    threads = [threading.Thread(target=one, args=(plan,)) for plan in what]
    for number, thread in enumerate(threads):
        if number:
            between()
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def prints(capsys, pattern: str) -> Callable[[], bool]:
    """Make a look, which finds a pattern in what is printed from now on."""
    said = []

    def look() -> bool:
        said.append(capsys.readouterr().out)
        return bool(re.search(pattern, "".join(said)))

    return look


def test_pods_that_start_one_after_the_other_reach_each_other(port, capsys):
    refused = r"waiting for \d of 2 peers \(.*127.0.0.13: connection refused"
    said = lambda: patience.wait("it waits in words", prints(capsys, refused), patience.still)  # noqa: E731
    ended = run_all([plan_of(me, port) for me in (PODS[1], PODS[0], PODS[2])], said)
    assert set(ended.values()) == {"reached"}
    assert capsys.readouterr().out.count("3 pods reach each other") == 3


def failed(plan: peers.PeerPlan) -> ExitError:
    listener = presence.Listener(plan.job, plan.port, plan.me)
    with pytest.raises(ExitError) as caught:
        peers.reach(plan, listener, every=0.1)
    listener.close()
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_closed_port_is_named_with_its_pod(port, servers):
    servers.append(presence.Listener(JOB, port, PODS[1]))
    error = failed(plan_of(PODS[0], port, bound=0.5))
    refused = rf"127.0.0.13 runs, but port {port} cannot be reached \(connection refused for \d+ s\): .*see its log"
    assert re.match(refused, str(error))
    assert error.code == Exit.HANG


def test_as_many_pods_may_be_out_of_reach_as_there_are_spares(port, servers, capsys):
    servers += [presence.Listener(JOB, port, PODS[1]), presence.Listener(JOB, port, PODS[0])]
    peers.reach(plan_of(PODS[0], port, least=2, spares=1, bound=0.5), servers[1], every=0.1)
    assert "2 pods reach each other" in capsys.readouterr().out
    for server in servers:
        server.close()
    assert failed(plan_of(PODS[0], port, least=2, spares=1, bound=0.5)).code == Exit.HANG


def test_a_pod_that_does_not_reach_the_first_one_does_not_wait_for_a_spare(port, servers):
    servers.append(presence.Listener(JOB, port, PODS[1]))
    error = failed(plan_of(PODS[2], port, least=2, spares=1, bound=0.5))
    assert str(error).startswith(f"{PODS[0]} runs, but port {port} cannot be reached")


def test_a_spare_pod_waits_for_nobody_once_the_run_has_finished(port):
    listener = presence.Listener(JOB, port, PODS[2])
    for wait in (patience.IDLE, 0.0):  # also where the first look at all pods took as long as they are waited for
        with pytest.raises(peers.OverError):
            peers.reach(plan_of(PODS[2], port, least=2, spares=1, wait=wait), listener, every=0.1, over=lambda: True)
    with pytest.raises(ExitError):  # without spare pods all take part, and each sees for itself what there is to do
        peers.reach(plan_of(PODS[2], port, bound=0.5), listener, every=0.1, over=lambda: True)
    listener.close()


def test_of_many_pods_a_neighbour_may_be_missing_where_there_is_a_spare(port, servers):
    names = (*PODS, *(f"{JOB}-worker-{index}.invalid" for index in range(3, peers.ASK_ALL + 1)))
    what = replace(plan_of(PODS[1], port, least=len(names) - 1, wait=0.5), names=names)
    servers += [presence.Listener(JOB, port, PODS[0]), presence.Listener(JOB, port, PODS[2])]
    servers[0].state = "loaded"
    assert "did not start" in str(failed(what))
    servers.append(presence.Listener(JOB, port, PODS[1]))
    peers.reach(replace(what, spares=1, wait=patience.IDLE), servers[2], every=0.1)


def test_a_pod_that_comes_while_the_others_train_waits_for_no_lost_one(port, servers, monkeypatch):
    monkeypatch.setattr(peers, "SPARED", patience.IDLE)
    servers += [presence.Listener(JOB, port, PODS[1]), presence.Listener(JOB, port, PODS[0])]
    servers[1].state = "loaded"
    peers.reach(plan_of(PODS[1], port, least=2, spares=1, wait=patience.IDLE / 2), servers[0], every=0.1)


def fail_beside(port: int, monkeypatch, me: str = PODS[2], spares: int = 1) -> ExitError:
    """Fail for good in a pod of a job of two nodes, beside the others; return what it ends with."""
    monkeypatch.setattr(peers, "AGAIN", 0.0)
    monkeypatch.setattr(peers, "plan", lambda environ, hostname: plan_of(me, port, least=2, spares=spares))
    with pytest.raises(ExitError) as ended, peers.excuse_spare({}):
        raise ExitError("/data is empty", Exit.CONFIG)
    return ended.value


def test_a_spare_pod_that_fails_for_good_is_tried_again_while_the_others_train(port, servers, monkeypatch, capsys):
    servers.append(presence.Listener(JOB, port, PODS[0]))
    servers[0].state = "loaded"
    threading.Timer(0.5, setattr, (servers[0], "state", "trains")).start()  # they take another spare pod in just now
    error = fail_beside(port, monkeypatch)
    assert error.code == Exit.HANG
    assert str(error).startswith("/data is empty (the other pods train without this one")
    assert capsys.readouterr().err.startswith("error: /data is empty\npreflight: the other pods train")
    with pytest.raises(ExitError) as other, peers.excuse_spare({}):
        raise ExitError("lost", Exit.STORAGE)
    assert other.value.message == "lost"  # is retried as it is


@pytest.mark.parametrize("state", ["waits", "loaded"])
def test_a_pod_that_the_others_need_fails_for_good(port, servers, monkeypatch, state):
    monkeypatch.setattr(peers, "REGROUP", 0.1)
    servers.append(presence.Listener(JOB, port, PODS[0]))
    servers[0].state = state
    assert fail_beside(port, monkeypatch).code == Exit.CONFIG
    servers[0].state = "trains"
    for case in ({"spares": 0}, {"me": PODS[0]}):  # which hosts the rendezvous
        assert fail_beside(port, monkeypatch, **case).code == Exit.CONFIG


def test_the_first_pod_may_be_the_one_that_waits_while_the_others_train(port, servers, monkeypatch):
    servers += [presence.Listener(JOB, port, PODS[0]), presence.Listener(JOB, port, PODS[1])]
    servers[0].state, servers[1].state = "loaded", "trains"
    assert fail_beside(port, monkeypatch).code == Exit.HANG


def test_a_stopped_process_is_told_from_packets_that_do_not_pass(port, servers, monkeypatch):
    monkeypatch.setattr(presence, "PROBE_SECONDS", 0.3)
    servers.append(socket.create_server((PODS[2], port)))  # the kernel takes the connection
    assert presence.ask(PODS[2], port, JOB, presence.Peer()).why == "it accepts, but says nothing"
    monkeypatch.setattr(socket, "create_connection", Mock(side_effect=TimeoutError("timed out")))
    assert presence.ask(PODS[2], port, JOB, presence.Peer()).why == "no answer"


def test_a_port_that_swallows_everything_is_blamed_on_what_keeps_pods_apart(port, servers, monkeypatch):
    monkeypatch.setattr(presence, "PROBE_SECONDS", 0.3)
    servers.append(presence.Listener(JOB, port, PODS[1]))
    servers.append(socket.create_server((PODS[2], port)))  # takes the connection and says nothing
    refused = plan_of(PODS[0], port, bound=0.5)
    assert re.search(r"says nothing for \d+ s\): a NetworkPolicy, mesh or firewall", str(failed(refused)))


def test_clocks_that_differ_are_named_where_pods_meet_by_a_rendezvous(port, servers, monkeypatch):
    servers += [presence.Listener(JOB, port, PODS[0]), presence.Listener(JOB, port, PODS[2])]
    assert abs(presence.ask(PODS[0], port, JOB, presence.Peer()).ahead) < 0.01
    later = lambda job, state: f"trainyard {job} {state} {time.time() + 3700}\n".encode()  # noqa: E731
    monkeypatch.setattr(presence, "_greeting", later)
    servers[0].state = "loaded"
    error = failed(plan_of(PODS[1], port, timed=True))
    assert re.match(r"the clock of 127.0.0.1[13]'s node is 3[67]\d\d s ahead of this one's, and torch's", str(error))
    assert error.code == Exit.HANG
    servers.append(presence.Listener(JOB, port, PODS[1]))
    peers.reach(plan_of(PODS[1], port), servers[2], every=0.1)  # without a rendezvous no clocks are compared


def test_something_else_on_the_port_is_told_apart(port, servers):
    other = presence.Listener("another-job", port, PODS[1])
    servers += [other, presence.Listener(JOB, port, PODS[2])]
    error = failed(plan_of(PODS[0], port, bound=0.5))
    assert re.search(r"something else answers .*set global.training.peers.port", str(error))


def test_a_pod_that_never_starts_is_waited_for_and_named(port, servers):
    late = f"{JOB}-worker-0.invalid"
    what = replace(plan_of(PODS[0], port, wait=0.5), names=(PODS[0], late), least=2)
    assert re.match(
        rf"1 pods did not start within 0 s \({late}\): see their events with `kubectl describe pod", str(failed(what))
    )


def test_an_elastic_job_starts_with_fewer_but_not_without_the_first(port, servers):
    names = (PODS[0], PODS[1], f"{JOB}-worker-2.invalid")
    two = [replace(plan_of(me, port, least=2), names=names) for me in PODS[:2]]
    assert set(run_all(two).values()) == {"reached"}
    names = (f"{JOB}-worker-0.invalid", PODS[0], PODS[1])
    servers.append(presence.Listener(JOB, port, PODS[1]))
    assert "did not start" in str(failed(replace(plan_of(PODS[0], port, least=2, wait=0.5), names=names)))


def test_the_rendezvous_port_must_open_too(port, servers):
    what = plan_of(PODS[1], port, bound=0.5)
    with pytest.raises(ExitError, match=rf"not on the rendezvous port {port + 1} \(connection refused for \d+ s\)"):
        peers.meet(what)
    servers.append(socket.create_server((PODS[0], port + 1)))
    peers.meet(what)
    servers.append(socket.create_server(("", port + 2)))
    with pytest.raises(UserError, match=r"rendezvous port .* cannot be listened on here"):
        peers.meet(plan_of(PODS[0], port, rendezvous=port + 2))


def test_the_time_of_the_rendezvous_begins_when_the_first_pod_has_loaded_torch(port, servers, monkeypatch, capsys):
    monkeypatch.setattr(peers, "EVERY", 0.5)
    first = presence.Listener(JOB, port, PODS[0])
    first.state = "ready"
    waits = plan_of(PODS[1], port, bound=0.5)
    loads = prints(capsys, f"preflight: waiting for {PODS[0]}, which loads torch")
    with ThreadPoolExecutor(1) as pool:
        meets = pool.submit(peers.meet, waits)
        patience.wait("it waits in words", loads, patience.still)
        servers.append(socket.create_server((PODS[0], port + 1)))
        meets.result()
    servers.pop().close()
    first.state = "loaded"
    with pytest.raises(ExitError, match="not on the rendezvous port"):
        peers.meet(waits)
    first.state = "ready"
    with pytest.raises(ExitError, match="not on the rendezvous port"):  # it loads for longer than a pod is waited for
        peers.meet(replace(waits, wait=1.0))
    first.close()


def test_a_port_that_is_taken_here_names_the_value(port, servers):
    servers.append(socket.create_server(("", port)))
    with pytest.raises(UserError, match=rf"port {port} cannot be listened on here .*global.training.peers.port"):
        presence.Listener(JOB, port)


def test_the_operators_environment_says_who_the_peers_are():
    what = peers.plan(MASTER_FORM, f"{JOB}-worker-1")
    assert what.names == (f"{JOB}-master-0", f"{JOB}-worker-0", f"{JOB}-worker-1")
    assert (what.least, what.port, what.rendezvous) == (3, 23400, 23456)
    elastic = {**MASTER_FORM, "PET_NNODES": "2:4", "PET_RDZV_ENDPOINT": f"{JOB}-worker-0:29400"}
    what = peers.plan(elastic, f"{JOB}-worker-3")
    assert what.names == tuple(f"{JOB}-worker-{index}" for index in range(4))
    assert (what.least, what.rendezvous) == (2, 29400)
    what = peers.plan({**elastic, "PET_NNODES": "2:2", "TRAINYARD_SPARES": "1"}, f"{JOB}-worker-2")
    assert (len(what.names), what.least, what.spares) == (3, 2, 1)
    assert what.timed
    timed = [peers.plan(MASTER_FORM | own, f"{JOB}-master-0").timed for own in ({}, {"PET_MAX_RESTARTS": "3"})]
    assert timed == [False, True]
    with pytest.raises(UserError, match="this pod is elsewhere, which is none of the job's 3 pods"):
        peers.plan(MASTER_FORM, "elsewhere")
    for name in ("TRAINYARD_SPARES", "TRAINYARD_PEERS_WAIT"):
        with pytest.raises(UserError, match=f"environment variable {name} is 'many'"):
            peers.plan({**elastic, name: "many"}, f"{JOB}-worker-2")


def test_the_pods_of_a_trainjob_are_asked_by_their_names_below_its_own(port, tmp_path):
    job = "demo-trainjob-01234567"
    environ = {
        "TRAINYARD_JOB": job, "TRAINYARD_PEERS_PORT": str(port), "TRAINYARD_PEERS_WAIT": "0.1", "PET_NNODES": "3",
        "PET_MASTER_ADDR": f"{job}-node-0-0.{job}", "PET_MASTER_PORT": "29500", "TRAINYARD_LOGS": str(tmp_path),
    }  # fmt: skip
    what = peers.plan(environ, f"{job}-node-0-1")
    assert what.names == tuple(f"{job}-node-0-{index}.{job}" for index in range(3))
    assert (what.me, what.least, what.rendezvous) == (what.names[1], 3, 29500)
    spare = peers.plan({**environ, "TRAINYARD_SPARES": "1"}, f"{job}-node-0-2")
    assert (spare.names, spare.least, spare.spares) == (what.names, 2, 1)
    with pytest.raises(ExitError, match=rf"`kubectl describe pod {job}-node-0-0`, or raise"):
        peers.check(environ, f"{job}-node-0-1")
    assert [path.name for path in tmp_path.iterdir()] == ["node-0-1.peers.json"]


def test_nothing_is_checked_where_there_are_no_peers_or_nobody_asks():
    assert peers.plan({}, "here") is None
    assert peers.plan({**MASTER_FORM, "PET_NNODES": "1"}, f"{JOB}-master-0") is None
    assert peers.plan({**MASTER_FORM, "TRAINYARD_PEERS_PORT": ""}, f"{JOB}-master-0") is None


def test_many_pods_ask_the_first_and_their_neighbours_and_the_first_asks_all():
    names = tuple(f"pod-{index}" for index in range(100))
    what = replace(plan_of("pod-98", 1), names=names)
    assert what.choose_peers() == ("pod-0", "pod-99")
    assert replace(what, me="pod-50").choose_peers() == ("pod-0", "pod-51", "pod-52")
    assert replace(what, me="pod-0").choose_peers() == names[1:]
    assert (peers.pause(1.0, 64), peers.pause(1.0, 65), peers.pause(6.0, 2)) == (0.2, 1.0, 1.0)


@pytest.mark.parametrize("new", [presence.Peer("", "trains", "10.0.0.2"), presence.Peer("", "ready", "10.0.0.1")])
def test_a_pod_ends_that_waits_for_a_first_pod_which_was_replaced(monkeypatch, new):
    old, gone = presence.Peer("", "trains", "10.0.0.1"), presence.Peer("no answer")
    restarted, other_family = replace(old, state="loaded"), replace(old, address="fd00::1")
    answers = iter([gone, old, restarted, other_family, old, new, gone, old, new, gone, new])
    monkeypatch.setattr(peers, "MISSED", 0.015)
    monkeypatch.setattr(peers, "ask", lambda *asked: next(answers))
    ended = []
    peers.miss_first(plan_of(PODS[1], 1), lambda why: ended.append((why, list(answers))), every=0.01)
    ((why, left),) = ended
    assert left == []  # not before it was another one for two looks in a row
    assert "which hosts the rendezvous, was replaced" in why


def listens(port: int) -> bool:
    """Whether a port can be listened on: the thread that waited there has ended."""
    with contextlib.suppress(OSError):
        presence.listen(port).close()
        return True
    return False


def test_failures_in_a_row_are_counted_and_end_for_good(port, tmp_path):
    environ = {**MASTER_FORM, "PET_NNODES": "2", "TRAINYARD_PEERS_PORT": str(port), "TRAINYARD_PEERS_WAIT": "0.1"}
    environ["TRAINYARD_LOGS"] = str(tmp_path / "logs")
    codes = []
    for _ in range(4):
        with pytest.raises((ExitError, UserError)) as caught, peers.excuse_spare(environ, f"{JOB}-master-0"):
            peers.check(environ, f"{JOB}-master-0")
        codes.append((caught.value.code, "3 tries in a row" in str(caught.value)))
        patience.wait("the port is not given back", lambda: listens(port), patience.still)
    # the fourth is of a job that a person has made again
    assert codes == [(Exit.HANG, False), (Exit.HANG, False), (Exit.CONFIG, True), (Exit.HANG, False)]
