"""Restarts in place under `trainyard launch`.

Processes end with their launcher, survivors continue without them, and permanent failures are not retried.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import Trainer, environment, events, hold, ranks_of, wait_for_step
from rendezvous import ELASTIC, node, rendezvous

from tests import documents, patience, ports
from trainyard.core.exits import UserError
from trainyard.pod import launcher
from trainyard.run import checkpoint

pytestmark = pytest.mark.takes(30)


def test_the_documents_command_continues_alone_when_a_node_is_lost(trainer: Trainer, tmp_path: Path) -> None:
    """The command as it stands, with what is this test's behind it: a model, and where each node may go on."""
    run, places, port = tmp_path / "run", tmp_path / "places", ports.free()
    command = documents.text("interruptions.md", "--nnodes 1:2", {":29400": f":{port}"}).strip()
    own = trainer.settings(run, **ELASTIC)
    command += "".join(f" --set={shlex.quote(f'{key}={json.dumps(value)}')}" for key, value in own.items())
    first, second = (started(trainer, command, node(name, "", places), tmp_path) for name in ("first", "second"))
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
    calm = trainer.train(tmp_path / "calm", 1, recipe="demo", **ELASTIC)
    one, other = (checkpoint.at(path / "checkpoints" / "step-00000032").load()["model"] for path in (run, calm))
    assert all(torch.allclose(one[name], other[name], rtol=0, atol=1e-11) for name in one)
    steps = [event["step"] for event in events(run, "train")]
    assert steps == list(range(1, 33))


def started(trainer: Trainer, command: str, env: dict[str, str], cwd: Path) -> "subprocess.Popen[str]":
    """Start a document's command on a node, whose environment says nothing that the command says."""
    said = (
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
        "PET_MAX_RESTARTS",
        "PET_RDZV_BACKEND",
        "PET_RDZV_ENDPOINT",
        "PET_RDZV_ID",
    )
    env = environment({key: value for key, value in env.items() if key not in said})
    trainer.running.append(process := documents.start(command, cwd, FIRST="127.0.0.1", **env))
    return process


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


@pytest.mark.parametrize(("code", "starts"), [(138, 3), (77, 1)])
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


def test_a_killed_rank_of_two_pods_is_started_again_in_it(trainer: Trainer, tmp_path: Path) -> None:
    run, port = tmp_path / "run", ports.free()
    both = {"PET_NNODES": "2", **hold(tmp_path / "held", "6")}
    pods = [trainer.start(run, 1, numbered(number, port) | both, **ELASTIC) for number in (0, 1)]
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
