"""Restarts in place under `trainyard launch`.

Processes end with their launcher, survivors continue without them, and permanent failures are not retried.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.elastic.rendezvous.registry as rendezvous_registry
from conftest import Trainer, events, hold, ranks_of, wait_for_step
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, _NodeDesc

from tests import documents, patience, ports
from trainyard.core.exits import UserError
from trainyard.pod import launcher
from trainyard.run import checkpoint

pytestmark = pytest.mark.takes(30)

ELASTIC: dict[str, Any] = {"model.name": "little_models:groups", "epochs": 4}  # in fp64: equal on any world to rounding


def rendezvous(host: bool, missed: int = 8) -> str:
    """Settings of torch's rendezvous that are quick to notice that a node is gone, and as slow as this machine.

    So many signs of life may be missed: on a busy machine one that lives would be taken for lost by torch's three. Who
    waits for a lost node waits for less than the time after which a test takes it for one that hangs.
    """
    pace = min(8, max(2, math.ceil(patience.slowness())))
    return f"is_host={host},last_call_timeout={4 * pace},keep_alive_interval={pace},keep_alive_max_attempt={missed}"


def node(name: str, endpoint: str, places: Path) -> dict[str, str]:
    """Environment of one of two nodes, of which one is enough; none trains alone, nor both past 8 steps, until told."""
    return {
        "PET_NNODES": "1:2", "PET_NPROC_PER_NODE": "1", "PET_MAX_RESTARTS": "3", "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": endpoint, "PET_RDZV_ID": "elastic", "PET_LOCAL_ADDR": "127.0.0.1",
        "PET_RDZV_CONF": rendezvous(name == "first"), **hold(places, "0-of-1", "8-of-2"),
        "TRAINYARD_JOB": "elastic", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def test_node_is_lost_and_the_other_continues_alone(trainer: Trainer, tmp_path: Path) -> None:
    run, places, endpoint = tmp_path / "run", tmp_path / "places", f"127.0.0.1:{ports.free()}"
    # As programs: of two forked at once, the second was seen to write what they share too late, again and again
    first = trainer.start(run, 1, node("first", endpoint, places), forked=False, **ELASTIC)
    second = trainer.start(run, 1, node("second", endpoint, places), forked=False, **ELASTIC)
    # on a busy machine the first may start alone, until the second has come
    patience.wait("a checkpoint of both", lambda: 2 in world_sizes(run), lambda: patience.processor_seconds(first.pid))
    wait_for_step(run, 6, first)
    lost, then = ranks_of(second), time.time()
    assert len(lost) == 1
    second.kill()  # the launcher alone: its process must go with it
    second.communicate()
    gone = lambda: not Path(f"/proc/{lost[0]}").exists()  # noqa: E731
    patience.wait("the launcher's process outlives it", gone, patience.still)
    for place in places.iterdir():
        place.unlink()
    output, _ = patience.communicate(first)
    assert first.returncode == 0, output
    assert [event["step"] % 4 for event in events(run, "resume") if event["time"] > then] == [0]
    assert world_sizes(run)[-1] == 1
    calm = trainer.train(tmp_path / "calm", 1, **ELASTIC)
    one, other = (checkpoint.at(path / "checkpoints" / "step-00000032").load()["model"] for path in (run, calm))
    assert all(torch.allclose(one[name], other[name], rtol=0, atol=1e-11) for name in one)
    steps = [event["step"] for event in events(run, "train")]
    assert steps == list(range(1, 33))


def test_the_documents_command_continues_without_a_lost_node(trainer: Trainer, tmp_path: Path) -> None:
    command = documents.text("interruptions.md", "--nnodes 1:2", {":29400": f":{ports.free()}"}).strip()
    run, nodes = tmp_path / "runs" / "default", []
    for host in (True, False):
        own = {"PET_RDZV_CONF": rendezvous(host), "PET_LOCAL_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        own["TRAINYARD_GRACE_SECONDS"] = str(patience.IDLE)
        nodes.append(documents.start(command, tmp_path, FIRST="127.0.0.1", TRAINYARD_JOB="elastic", **own))
        trainer.running.append(nodes[-1])
    first, second = nodes
    patience.wait("a checkpoint of both", lambda: 2 in world_sizes(run), lambda: patience.processor_seconds(first.pid))
    second.kill()
    second.communicate()
    patience.wait("it resumes", lambda: trains_again(run), lambda: patience.processor_seconds(first.pid))
    first.send_signal(signal.SIGTERM)
    output, _ = patience.communicate(first)
    assert first.returncode == 143, output
    assert world_sizes(run)[-1] == 1


def trains_again(run: Path) -> bool:
    """Whether a resumed run has done a step, which is worth a checkpoint."""
    resumed, trained = events(run, "resume"), events(run, "train")
    return bool(resumed) and trained[-1]["time"] > resumed[-1]["time"]


def world_sizes(run: Path) -> list[int]:
    found: list[int] = []
    for path in checkpoint.steps(run / "checkpoints"):
        with contextlib.suppress(UserError):  # it was pruned meanwhile
            found.append(checkpoint.at(path).meta["world_size"])
    return found


COUNTED = """
import os, sys
from pathlib import Path
from trainyard.core.exits import guarded
def main():
    with Path(sys.argv[1]).open("a") as file:
        print(os.getpid(), file=file, flush=True)
    return int(sys.argv[2])
guarded(main)
"""


def launch(trainer: Trainer, tmp_path: Path, code: int) -> "subprocess.Popen[str]":
    (tmp_path / "counted.py").write_text(COUNTED)
    command = ["-m", "trainyard", "launch", "--nproc-per-node", "1", "--max-restarts", "2"]
    return trainer.python(*command, str(tmp_path / "counted.py"), str(tmp_path / "starts"), str(code))


@pytest.mark.parametrize(("code", "starts"), [(138, 3), (77, 1), (1, 1), (201, 1)])
def test_only_what_may_get_better_is_started_again(trainer: Trainer, tmp_path: Path, code: int, starts: int) -> None:
    process = launch(trainer, tmp_path, code)
    output, _ = patience.communicate(process)
    assert process.returncode == code, output
    assert len((tmp_path / "starts").read_text().split()) == starts


def test_a_killed_rank_of_one_pod_is_started_again_inside_it(trainer: Trainer, tmp_path: Path) -> None:
    """With the variables of an operator, which names the pod itself as the master."""
    run, note = tmp_path / "run", tmp_path / "termination-log"
    note.write_text("lost contact with another process")
    env = {
        "PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(ports.free()),
        "PET_MAX_RESTARTS": "1", "TRAINYARD_TERMINATION_LOG": str(note), **hold(tmp_path / "places", "6"),
    }  # fmt: skip
    process = trainer.start(run, 2, env, **ELASTIC)
    wait_for_step(run, 6, process)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    (tmp_path / "places" / "6").unlink()
    output, _ = patience.communicate(process)
    assert process.returncode == 0, output
    assert len(events(run, "start")) == 2
    assert [event["step"] for event in events(run, "train")] == list(range(1, 33))
    assert note.read_text() == ""  # the failure is over


def numbered(number: int, port: int) -> dict[str, str]:
    """Environment of one of two nodes that an operator has numbered, as a TrainJob's."""
    return {
        "PET_NODE_RANK": str(number), "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port), "PET_MAX_RESTARTS": "3", "PET_LOCAL_ADDR": "127.0.0.1",
        "PET_RDZV_CONF": rendezvous(number == 0, missed=600), "TRAINYARD_JOB": "numbered", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


@pytest.mark.parametrize("by", ["rendezvous", "number"])
def test_a_killed_rank_of_two_pods_is_started_again_in_it(trainer: Trainer, tmp_path: Path, by: str) -> None:
    run, places, port = tmp_path / "run", tmp_path / "places", ports.free()
    both = {"PET_NNODES": "2", **hold(tmp_path / "held", "6")}
    lasting = {name: {"PET_RDZV_CONF": rendezvous(name == "first", missed=600)} for name in ("first", "second")}
    named = [node(name, f"127.0.0.1:{port}", places) | conf for name, conf in lasting.items()]
    own = named if by == "rendezvous" else [numbered(0, port), numbered(1, port)]
    pods = [trainer.start(run, 1, one | both, forked=False, **ELASTIC) for one in own]
    wait_for_step(run, 6, pods[0])
    os.kill(ranks_of(pods[1])[0], signal.SIGKILL)
    (tmp_path / "held" / "6").unlink()
    for pod in pods:
        output, _ = patience.communicate(pod)
        assert pod.returncode == 0, output
    assert len(events(run, "start")) == 2
    assert [event["step"] for event in events(run, "train")] == list(range(1, 33))


@pytest.fixture
def three_pods(trainer: Trainer, tmp_path: Path) -> "list[subprocess.Popen[str]]":
    """Three pods of a job of two nodes, at step 6: the two that train, the rendezvous' host first, and the spare."""
    run, endpoint = tmp_path / "run", f"127.0.0.1:{ports.free()}"
    more = {"PET_NNODES": "2:2", "TRAINYARD_SPARES": "1", "TRAINYARD_LOGS": str(run / "logs")}
    names = ("first", "second", "third")
    pods = [
        trainer.start(
            run, 1, node(name, endpoint, tmp_path) | more | hold(tmp_path / "held", "6"), forked=False, **ELASTIC
        )
        for name in names
    ]
    wait_for_step(run, 6, pods[0])
    ordered = sorted(pods, key=lambda pod: (not ranks_of(pod), pod is not pods[0]))
    assert [len(ranks_of(pod)) for pod in ordered] == [1, 1, 0]
    return ordered


def test_a_spare_pod_takes_the_place_of_a_lost_one(
    trainer: Trainer, three_pods: "list[subprocess.Popen[str]]", tmp_path: Path
) -> None:
    host, lost, spare = three_pods
    lost.kill()
    lost.communicate()
    (tmp_path / "held" / "6").unlink()
    for pod in (host, spare):
        output, _ = patience.communicate(pod)
        assert pod.returncode == 0, output
    run = tmp_path / "run"
    assert [event["world_size"] for event in events(run, "start")] == [2, 2]
    assert [event["step"] for event in events(run, "train")] == list(range(1, 33))


def test_a_spare_pod_that_was_not_needed_ends_with_the_run(
    three_pods: "list[subprocess.Popen[str]]", tmp_path: Path
) -> None:
    (tmp_path / "held" / "6").unlink()
    for pod in three_pods:
        output, _ = patience.communicate(pod)
        assert pod.returncode == 0, output
        assert "Traceback" not in output
    assert len(events(tmp_path / "run", "start")) == 1


@pytest.mark.parametrize(
    ("file", "note", "code"),
    [
        ("summary.json", {"status": "finished"}, 0),
        ("summary.json", {"status": "interrupted"}, 138),
        ("restarts/ended-other.note", {"job": "elastic"}, 0),  # of a program of the user's
    ],
)
def test_a_spare_pod_ends_as_the_run_does_when_the_others_close_the_rendezvous(
    trainer: Trainer, tmp_path: Path, file: str, note: dict[str, str], code: int
) -> None:
    run, endpoint = tmp_path / "run", f"127.0.0.1:{ports.free()}"
    # this process, the other pod, may be starved: it is not taken for lost, and takes neither for lost
    conf = {"is_host": "true", "keep_alive_interval": "1", "keep_alive_max_attempt": "600"}
    others: Any = rendezvous_registry.get_rendezvous_handler(
        RendezvousParameters("c10d", endpoint, "elastic", 1, 1, "127.0.0.1", **conf)
    )
    others.next_rendezvous()
    more = {"PET_NNODES": "1:1", "TRAINYARD_SPARES": "1", "TRAINYARD_LOGS": str(run / "logs")}
    env = node("spare", endpoint, tmp_path) | more
    env["PET_RDZV_CONF"] = "is_host=False,keep_alive_max_attempt=600"
    if file == "summary.json":
        spare = trainer.start(run, 1, env, forked=False, **ELASTIC)
    else:
        spare = trainer.python("-m", "trainyard", "launch", "--no-python", "true", env=env, forked=False)
    holder = others._state_holder
    waits = lambda: (holder.sync(), holder.state.redundancy_list)[1]  # noqa: E731
    patience.wait("it waits in the rendezvous", waits, lambda: patience.processor_seconds(spare.pid))
    (run / file).parent.mkdir(parents=True, exist_ok=True)
    (run / file).write_text(json.dumps({**note, "finished_at": time.time()}))
    others.shutdown()
    output, _ = patience.communicate(spare)
    assert spare.returncode == code, output
    assert "Traceback" not in output


def test_a_pod_that_waits_restarts_nothing_while_there_is_no_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that wait for one place the second stays on torch's list."""
    original = DynamicRendezvousHandler.num_nodes_waiting
    monkeypatch.setattr(DynamicRendezvousHandler, "num_nodes_waiting", original)  # which is put back afterwards
    launcher.leave_full_groups_alone()
    # No sign of life reads the list from the store meanwhile
    endpoint, conf = f"127.0.0.1:{ports.free()}", {"is_host": "true", "keep_alive_interval": "3600"}
    handler: Any = rendezvous_registry.get_rendezvous_handler(
        RendezvousParameters("c10d", endpoint, "full", 1, 1, "127.0.0.1", **conf)
    )
    handler.next_rendezvous()
    holder = handler._state_holder
    holder._cache_duration = 3600  # nor does a list that is older than a second, on a machine that stands still
    holder.state.wait_list.add(_NodeDesc("127.0.0.2", 1, 0))
    assert (original(handler), handler.num_nodes_waiting()) == (1, 0)
    holder.state.participants.clear()
    assert handler.num_nodes_waiting() == 1
    handler.shutdown()


def test_numbered_nodes_meet_by_a_rendezvous_where_they_may_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(restarts: int, backend: str, nodes: str, rank: str = "1", conf: str = "") -> tuple[str, str, str]:
        options = SimpleNamespace(
            max_restarts=restarts, rdzv_backend=backend, rdzv_endpoint="", rdzv_conf=conf, nnodes=nodes,
            node_rank=rank, master_addr="first", master_port=29500,
        )  # fmt: skip
        launcher.meet_again(options)
        assert options.nnodes == nodes
        return options.rdzv_backend, options.rdzv_endpoint, options.rdzv_conf

    for one in ((0, "static", "2"), (3, "static", "1"), (3, "c10d", "2"), (3, "c10d", "1:2")):
        assert settled(*one) == (one[1], "", "")
    assert settled(3, "static", "2") == ("c10d", "first:29500", "is_host=False,join_timeout=600")
    monkeypatch.setenv("TRAINYARD_PEERS_WAIT", "3600")
    conf = "is_host=True,join_timeout=3600,join_timeout=9"
    assert settled(3, "static", "2", "0", "join_timeout=9") == ("c10d", "first:29500", conf)
