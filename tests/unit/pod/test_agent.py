"""The changes in torch's agent and rendezvous, shown by torch's own objects."""

import contextlib
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from rendezvous import handler
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, _NodeDesc

from tests import ports
from trainyard.pod import agent
from trainyard.pod.agent import give_children, restart_what_may_pass


def test_a_pod_tells_its_peers_while_its_group_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    listening = SimpleNamespace(state="trains")
    monkeypatch.setattr(DynamicRendezvousHandler, "next_rendezvous", lambda self: seen.append(listening.state))
    agent.tell_peers_who_trains(listening)  # type: ignore[arg-type]
    DynamicRendezvousHandler.next_rendezvous(None)  # type: ignore[arg-type]
    assert (seen, listening.state) == (["loaded"], "trains")


def test_a_pod_that_waits_restarts_nothing_while_there_is_no_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that wait for one place the second stays on torch's list."""
    original = DynamicRendezvousHandler.num_nodes_waiting
    monkeypatch.setattr(DynamicRendezvousHandler, "num_nodes_waiting", original)  # which is put back afterwards
    agent.leave_full_groups_alone()
    # No sign of life reads the list from the store meanwhile
    endpoint, conf = f"127.0.0.1:{ports.free()}", {"is_host": "true", "keep_alive_interval": "3600"}
    waited_for = handler(endpoint, "full", **conf)
    waited_for.next_rendezvous()
    holder = waited_for._state_holder
    holder._cache_duration = 3600  # nor does a list that is older than a second, on a machine that stands still
    holder.state.wait_list.add(_NodeDesc("127.0.0.2", 1, 0))
    assert (original(waited_for), waited_for.num_nodes_waiting()) == (1, 0)
    holder.state.participants.clear()
    assert waited_for.num_nodes_waiting() == 1
    waited_for.shutdown()


@pytest.mark.parametrize(
    ("outcome", "spares", "most", "closes"),
    [
        (RendezvousConnectionError("cut"), "", 1, False),
        ({0: 201, 1: 138}, "1", 1, False),
        ({0: 201, 1: -9}, "", 2, False),  # one is enough
        ({0: 201, 1: 138}, "", 1, True),  # all pods are recreated, as nobody takes its place
        ({0: 201, 1: 2}, "1", 1, True),
        ({0: 138}, "1", 1, True),
        ({}, "1", 1, True),
    ],
)
def test_a_pod_that_ends_alone_leaves_the_others_rendezvous_open(
    monkeypatch: pytest.MonkeyPatch, outcome: RendezvousError | dict[int, int], spares: str, most: int, closes: bool
) -> None:
    def run(self: Any, role: str = "") -> Any:
        if isinstance(outcome, RendezvousError):
            raise outcome
        return SimpleNamespace(failures={rank: SimpleNamespace(exitcode=code) for rank, code in outcome.items()})

    monkeypatch.setenv("TRAINYARD_SPARES", spares)
    monkeypatch.setattr(LocalElasticAgent, "run", run)
    agent.leave_others_open()
    group = handler(f"127.0.0.1:{ports.free()}", "open", is_host="true", keep_alive_interval="3600")
    group.next_rendezvous()
    group._settings = dataclasses.replace(group._settings, max_nodes=most)
    one: Any = SimpleNamespace(_worker_group=SimpleNamespace(spec=SimpleNamespace(rdzv_handler=group)))
    with contextlib.suppress(RendezvousError):
        LocalElasticAgent.run(one)
    group.shutdown()  # as torch's launcher does, however its agent ends
    assert group.is_closed() == closes


@pytest.mark.parametrize(
    ("codes", "remaining"), [([], 2), ([138], 2), ([-9], 2), ([1], 0), ([77], 0), ([201], 0), ([138, 1], 0)]
)
def test_only_what_may_pass_leaves_restarts_in_place(
    monkeypatch: pytest.MonkeyPatch, codes: list[int], remaining: int
) -> None:
    def monitor(self: Any, worker_group: Any) -> Any:
        return SimpleNamespace(failures={rank: SimpleNamespace(exitcode=code) for rank, code in enumerate(codes)})

    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", monitor)
    restart_what_may_pass()
    one: Any = SimpleNamespace(_remaining_restarts=2)
    adapted: Any = LocalElasticAgent._monitor_workers
    adapted(one, None)
    assert one._remaining_restarts == remaining


def test_pods_are_numbered_in_their_order_and_not_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_NodeDesc, "__lt__", _NodeDesc.__lt__)  # which is put back afterwards
    agent.order_by_number()
    endpoint, names = f"127.0.0.1:{ports.free()}", [f"127.0.0.{number}" for number in range(1, 13)]

    def join(name: str) -> tuple[Any, int]:
        conf = {"is_host": str(name == names[0]), "keep_alive_interval": "3600"}
        own = handler(endpoint, "ordered", len(names), name, **conf)
        return own, own.next_rendezvous().rank

    with ThreadPoolExecutor(len(names)) as pool:
        joined = list(pool.map(join, names))  # the first one hosts the store, so it is kept until all have met
    assert [rank for _, rank in joined] == list(range(12))


def test_another_torchs_launcher_is_left_alone_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods that are none of torch's interface are replaced only where they have the form that is known."""
    from torch.distributed.elastic.multiprocessing import PContext

    for owner, name, replace in (
        (PContext, "close", lambda: give_children(5.0, set())),
        (LocalElasticAgent, "_monitor_workers", restart_what_may_pass),
    ):
        known = getattr(owner, name)
        monkeypatch.setattr(owner, name, known)
        monkeypatch.setattr(PContext, "start", PContext.start)  # is replaced with `close`
        replace()
        assert getattr(owner, name) is not known
        assert not capsys.readouterr().err

        def another(self: object, something: int) -> None:
            """Of a later torch."""

        monkeypatch.setattr(owner, name, another)
        replace()
        assert getattr(owner, name) is another
        assert "has another launcher than is known here: " in capsys.readouterr().err
        monkeypatch.undo()
