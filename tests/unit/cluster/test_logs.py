"""`trainyard logs` on a server that speaks the API's protocol."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import patience
from tests.fakes import apiserver
from tests.unit.cluster import things
from trainyard.cluster import logs

ROOT = Path(__file__).resolve().parents[3]


def put(cluster, job: dict, roles: dict[str, dict]) -> None:
    """Put a job and its pods by role; each prints its role."""
    cluster.put(f"{job['kind'].lower()}s", job)
    for role, state in roles.items():
        cluster.put("pods", things.pod(job, role, state))
        cluster.logs[f"{job['metadata']['name']}-{role}"] = f"I am {role}\nsecond line\n"


@pytest.fixture
def first(here):
    """A run of 3 nodes with 2 processes each."""
    put(
        here,
        things.pytorchjob("first", "Running", nodes=3, gpus=2),
        dict.fromkeys(("master-0", "worker-0", "worker-1"), things.RUNS),
    )
    return here


@pytest.mark.parametrize(("rank", "role"), [("0", "master-0"), ("1", "master-0"), ("2", "worker-0"), ("5", "worker-1")])
def test_the_pod_that_runs_a_rank_is_printed(first, ended, rank, role):
    code, out, err = ended(logs.main, "first", "-n", "vision", "--rank", rank)
    assert (code, out, err) == (0, f"I am {role}\nsecond line\n", "")


def test_rank_0_is_the_default_and_one_that_is_not_there_is_refused(first, ended):
    assert ended(logs.main, "first", "-n", "vision", "--tail", "1") == (0, "second line\n", "")
    code, _, err = ended(logs.main, "first", "-n", "vision", "--rank", "6")
    assert code == 2
    assert "has no rank 6: name one from 0 to 5 by --rank" in err
    assert ended(logs.main, "first", "--rank", "-1")[0] == 2


def test_all_pods_are_told_apart(first, ended):
    code, out, _ = ended(logs.main, "first", "-n", "vision", "--all", "--tail", "1")
    assert (code, out) == (0, "".join(f"{role} | second line\n" for role in ("master-0", "worker-0", "worker-1")))
    code, out, _ = ended(logs.main, "first", "-n", "vision", "--all", "--tail", "1", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert told[1] == {"pod": "first-pytorchjob-worker-0", "container": "main", "line": "second line"}


def test_a_pod_whose_node_does_not_answer_hinders_no_other(first, ended):
    away = "/first-pytorchjob-worker-0/log"
    first.fault = lambda path, query: (500, "dial tcp 10.0.0.7:10250: i/o timeout") if path.endswith(away) else None
    code, out, err = ended(logs.main, "first", "-n", "vision", "--all", "--tail", "1")
    assert (code, out) == (0, "master-0 | second line\nworker-1 | second line\n")
    assert err == "logs: first-pytorchjob-worker-0: dial tcp 10.0.0.7:10250: i/o timeout\n"
    assert ended(logs.main, "first", "-n", "vision", "--rank", "2")[0] == 2


def test_an_mpijobs_launcher_prints_every_rank(here, ended):
    spec = {"slotsPerWorker": 2, "mpiReplicaSpecs": {"Worker": {"replicas": 2}, "Launcher": {"replicas": 1}}}
    job = {
        "kind": "MPIJob",
        "metadata": things.meta("m-mpijob", "m", "mpijob"),
        "spec": spec,
        "status": things.status("Running"),
    }
    put(here, job, dict.fromkeys(("launcher-x7k2p", "worker-0", "worker-1"), things.RUNS))
    for rank in ("0", "3"):
        assert ended(logs.main, "m", "-n", "vision", "--rank", rank)[1] == "I am launcher-x7k2p\nsecond line\n"
    out = ended(logs.main, "m", "-n", "vision", "--all", "--tail", "1")[1]
    assert out.splitlines() == ["launcher | second line", "worker-0 | second line", "worker-1 | second line"]


def test_a_part_is_chosen_and_one_that_is_not_there_is_told_with_those_that_are(first, ended):
    dataset = {"kind": "Job", "metadata": things.meta("first-dataset", "first", "dataset"), "spec": {}, "status": {}}
    put(first, dataset, {"abcde": things.OVER})
    assert ended(logs.main, "first", "-n", "vision", "--part", "dataset")[1] == "I am abcde\nsecond line\n"
    code, _, err = ended(logs.main, "first", "-n", "vision", "--part", "evaluate")
    assert code == 2
    assert "has no part evaluate in namespace vision: name one that is there by --part: train, dataset" in err


def test_the_newest_job_counts(first, ended):
    newer = things.pytorchjob("first", "Running", nodes=1)
    newer["metadata"] |= {"name": "newer", "uid": "newer", "creationTimestamp": things.STARTED}
    put(first, newer, {"master-0": things.RUNS})
    first.logs["newer-master-0"] = "I am newer\n"
    assert ended(logs.main, "first", "-n", "vision")[1] == "I am newer\n"


def test_what_has_not_started_is_told(here, ended):
    put(here, things.pytorchjob("first", nodes=1), {"master-0": {"waiting": {"reason": "ContainerCreating"}}})
    code, out, err = ended(logs.main, "first", "-n", "vision")
    assert (code, out) == (1, "")
    assert err == "logs: first-pytorchjob-master-0 has not started: trainyard why first -n vision says why\n"


def test_controls_of_a_terminal_are_not_passed_on(first, ended):
    first.logs["first-pytorchjob-master-0"] = "red \x1b[31m\n"
    assert ended(logs.main, "first", "-n", "vision")[1] == "red \\x1b[31m\n"


class Reader:
    """A running `trainyard logs -f` and what it has printed."""

    def __init__(self, cluster, folder: Path, *more: str) -> None:
        env = os.environ | {"KUBECONFIG": str(cluster.kubeconfig(folder / "kubeconfig"))}
        command = [sys.executable, "-m", "trainyard", "logs", "first", "-n", "vision", "-f", *more]
        self.process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.lines: list[str] = []
        self.thread = threading.Thread(target=lambda: self.lines.extend(self.process.stdout or ()))

    def __enter__(self) -> "Reader":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        self.thread.join()

    def says(self, *lines: str) -> None:
        patience.wait(
            lambda: f"{lines}; it said {self.lines}",
            lambda: self.lines == [f"{one}\n" for one in lines],
            patience.still,
        )

    def end(self) -> int:
        patience.wait(lambda: f"it ends; it said {self.lines}", lambda: self.process.poll() is not None, patience.still)
        return self.process.returncode


def test_a_log_is_followed_through_a_broken_connection_and_a_new_pod_to_the_jobs_end(tmp_path):
    with apiserver.running() as cluster:
        job, name = things.pytorchjob("first", "Running", nodes=1), "first-pytorchjob-master-0"
        put(cluster, job, {"master-0": things.RUNS})
        with Reader(cluster, tmp_path) as reader:
            reader.says("I am master-0", "second line")
            cluster.logs[name] += "third line\n"
            reader.says("I am master-0", "second line", "third line")
            cluster.cut()
            cluster.logs[name] += "fourth line\n"
            reader.says("I am master-0", "second line", "third line", "fourth line")
            again = things.pod(job, "master-0", things.RUNS)
            again["metadata"] |= {"uid": "again", "creationTimestamp": things.STARTED}
            cluster.logs[name] = "I am again\n"
            cluster.put("pods", again)
            cluster.cut()
            reader.says("I am master-0", "second line", "third line", "fourth line", "I am again")
            cluster.put("pods", again | {"status": things.pod(job, "master-0", things.OVER)["status"]})
            cluster.over.add(name)
            cluster.put("pytorchjobs", things.pytorchjob("first", "Succeeded", nodes=1))
            assert reader.end() == 0
        assert reader.lines[4:] == ["I am again\n"]


def test_the_pods_are_listed_once_for_all_that_are_followed(first):
    newest = logs.NewestPods(logs.LogPlace("first", "vision", "train", None, False), "first-pytorchjob")
    begun = time.monotonic()
    assert {tuple(newest.look().pods) for _ in range(100)} == {(0, 1, 2)}
    assert first.count("pods", watches=False) <= 1 + (time.monotonic() - begun) / logs.EVERY


def test_all_pods_are_followed_at_once(tmp_path):
    with apiserver.running() as cluster:
        put(
            cluster,
            things.pytorchjob("first", "Running", nodes=2),
            dict.fromkeys(("master-0", "worker-0"), things.RUNS),
        )
        with Reader(cluster, tmp_path, "--all", "--tail", "1") as reader:
            patience.wait("both", lambda: len(reader.lines) == 2, patience.still)
            cluster.logs["first-pytorchjob-worker-0"] += "mine\n"
            patience.wait("a line of one", lambda: "worker-0 | mine\n" in reader.lines, patience.still)
            assert sorted(reader.lines[:2]) == ["master-0 | second line\n", "worker-0 | second line\n"]
