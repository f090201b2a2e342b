"""Spare pods under `trainyard launch`: one takes the place of a lost pod, or waits and ends as the run does."""

import json
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, Trainer, environment, events, hold, ranks_of, wait_for_step
from rendezvous import ELASTIC, handler, node

from tests import patience, ports

pytestmark = pytest.mark.takes(30)


def test_of_two_spare_pods_one_takes_the_place_of_a_lost_one_and_both_end_with_the_run(
    trainer: Trainer, tmp_path: Path
) -> None:
    """Four pods of a job of two nodes, at step 6: the two that train, the rendezvous' host first, and the spares."""
    run, endpoint = tmp_path / "run", f"127.0.0.1:{ports.free()}"
    more = {"PET_NNODES": "2:2", "TRAINYARD_SPARES": "2", "TRAINYARD_LOGS": str(run / "logs")}
    pods = [
        trainer.start(run, 1, node(name, endpoint, tmp_path) | more | hold(tmp_path / "held", "6"), **ELASTIC)
        for name in ("first", "second", "third", "fourth")
    ]
    wait_for_step(run, 6, pods[0])
    host, lost, *spare = sorted(pods, key=lambda pod: (not ranks_of(pod), pod is not pods[0]))
    assert [len(ranks_of(pod)) for pod in (host, lost, *spare)] == [1, 1, 0, 0]
    lost.kill()
    lost.communicate()
    (tmp_path / "held" / "6").unlink()
    for pod in (host, *spare):
        output, _ = patience.communicate(pod)
        assert pod.returncode == 0, output
        assert "Traceback" not in output
    assert [event["world_size"] for event in events(run, "start")] == [2, 2]
    assert [event["step"] for event in events(run, "train")] == list(range(1, 33))


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
    others = handler(endpoint, "elastic", **conf)
    others.next_rendezvous()
    more = {"PET_NNODES": "1:1", "TRAINYARD_SPARES": "1", "TRAINYARD_LOGS": str(run / "logs")}
    env = node("spare", endpoint, tmp_path) | more
    env["PET_RDZV_CONF"] = "is_host=False,keep_alive_max_attempt=600"
    if file == "summary.json":
        spare = trainer.start(run, 1, env, **ELASTIC)
    else:
        spare = trainer.python("-m", "trainyard", "launch", "--no-python", "true", env=env)
    holder = others._state_holder
    waits = lambda: (holder.sync(), holder.state.redundancy_list)[1]  # noqa: E731
    patience.wait("it waits in the rendezvous", waits, lambda: patience.processor_seconds(spare.pid))
    (run / file).parent.mkdir(parents=True, exist_ok=True)
    (run / file).write_text(json.dumps({**note, "finished_at": time.time()}))
    others.shutdown()
    output, _ = patience.communicate(spare)
    assert spare.returncode == code, output
    assert "Traceback" not in output


@pytest.mark.parametrize(("job", "code"), [("elastic", 0), ("changed", 138)])
def test_a_spare_pod_that_comes_when_the_run_has_finished_ends_with_it(
    trainer: Trainer, tmp_path: Path, job: str, code: int
) -> None:
    """As one whose node died in the last steps; a changed run, which is another job, waits for its pods."""
    run, config = tmp_path / "run", tmp_path / "config.json"
    done, said = trainer.run(run, env={"TRAINYARD_JOB": "elastic"}, **ELASTIC | {"epochs": 1})
    assert done == 0, said
    config.write_text(json.dumps({"recipe": "demo", "run": {"dir": str(run)}}))
    program = f"""
import socket, sys
from trainyard.core.exits import guarded
from trainyard.pod import launcher
socket.gethostname = lambda: "{job}-worker-2"
sys.argv += ["--config", {str(config)!r}]
guarded(lambda: launcher.main(["-m", "trainers.ddp", *sys.argv[1:]]))
"""
    env = {
        "TRAINYARD_JOB": job, "TRAINYARD_SPARES": "1", "TRAINYARD_PEERS_PORT": str(ports.free()),
        "TRAINYARD_PEERS_WAIT": "1", "PET_NNODES": "2:2", "PET_RDZV_ENDPOINT": f"{job}-worker-0:29400",
        "PET_RDZV_BACKEND": "c10d",
    }  # fmt: skip
    pod = trainer.forker.run([sys.executable, "-c", program], cwd=ROOT, env=environment(env))
    assert pod.returncode == code, pod.stderr
    assert ("this spare pod is not needed" in pod.stdout) == (code == 0)
