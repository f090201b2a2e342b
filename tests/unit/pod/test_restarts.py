"""Restarts in place under `trainyard launch`.

Processes end with their launcher, survivors continue without them, and permanent failures are not retried.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import Trainer, events, hold, ranks_of, wait_for_step
from rendezvous import ELASTIC, node, rendezvous

from tests import documents, patience, ports
from trainyard.core.exits import UserError
from trainyard.pod import launcher
from trainyard.run import checkpoint

pytestmark = pytest.mark.takes(30)


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
    then = time.time()
    second.kill()
    second.communicate()
    patience.wait("it resumes", lambda: trains_again(run, then), lambda: patience.processor_seconds(first.pid))
    first.send_signal(signal.SIGTERM)
    output, _ = patience.communicate(first)
    assert first.returncode == 143, output
    assert world_sizes(run)[-1] == 1


def trains_again(run: Path, since: float) -> bool:
    """Whether a run that was resumed since then has done a step, which is worth a checkpoint.

    It may have been resumed before, too: where the second node came after the first had begun alone.
    """
    resumed = [event["time"] for event in events(run, "resume") if event["time"] > since]
    return bool(resumed) and any(event["time"] > resumed[-1] for event in events(run, "train"))


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
    pods = [trainer.start(run, 1, one | both, **ELASTIC) for one in own]
    wait_for_step(run, 6, pods[0])
    os.kill(ranks_of(pods[1])[0], signal.SIGKILL)
    (tmp_path / "held" / "6").unlink()
    for pod in pods:
        output, _ = patience.communicate(pod)
        assert pod.returncode == 0, output
    assert len(events(run, "start")) == 2
    assert [event["step"] for event in events(run, "train")] == list(range(1, 33))


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
