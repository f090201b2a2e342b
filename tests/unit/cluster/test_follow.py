"""trainyard follow on a server that speaks the API's protocol: it watches, and says what a job's stage becomes."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import patience
from tests.fakes import apiserver
from tests.fakes.apiserver import Cluster
from tests.util.explained import YOUNG, condition, thing
from trainyard.cluster import follow
from trainyard.cluster.watching import Watched

ROOT = Path(__file__).resolve().parents[3]
OWN = {"app.kubernetes.io/instance": "run"}
STAMP = "2026-11-21T11:00:00Z"


@dataclass
class Follower:
    """A running trainyard follow and what it has printed."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    def says(self, words: str) -> None:
        """Wait until a line ends with these words."""
        self.until(words, lambda: any(line.rstrip().endswith(words) for line in self.lines))

    def until(self, what: str, look: Callable[[], object]) -> None:
        patience.wait(lambda: f"{what}; it said {self.lines}", look, patience.still)

    def end(self) -> int:
        self.until("it ends", lambda: self.process.poll() is not None)
        return self.process.returncode

    def stages(self) -> list[str]:
        """Return what it printed, without seconds."""
        return [line.split(maxsplit=3)[3].rstrip() for line in self.lines]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with apiserver.running() as found:
        yield found


@contextmanager
def following(cluster: Cluster, folder: Path, *more: str) -> Iterator[Follower]:
    """Follow the release `run` while the block runs."""
    env = os.environ | {"KUBECONFIG": str(cluster.kubeconfig(folder / "kubeconfig"))}
    command = [sys.executable, "-m", "trainyard", "follow", "run", *more]
    with subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder
    ) as process:
        found = Follower(process)
        reader = threading.Thread(target=lambda: found.lines.extend(process.stdout or ()))
        reader.start()
        try:
            yield found
        finally:
            process.kill()
            reader.join()


def job(*conditions: str) -> dict:
    held = [{"type": one, "status": "True", "message": f"it is {one}"} for one in conditions]
    meta = {"name": "run-pytorchjob", "uid": "j", "labels": OWN, "creationTimestamp": STAMP}
    return {"kind": "PyTorchJob", "metadata": meta, "spec": {}, "status": {"conditions": held}}


def pod(state: dict, name: str = "run-pytorchjob-master-0") -> dict:
    meta = {"name": name, "uid": name, "labels": OWN, "creationTimestamp": STAMP, "ownerReferences": [{"uid": "j"}]}
    status = {"phase": "Pending", "containerStatuses": [{"name": "pytorch", "state": state}]}
    return {"kind": "Pod", "metadata": meta, "spec": {}, "status": status}


RUNS = {"running": {"startedAt": STAMP}}


def test_each_stage_is_printed_and_nothing_is_listed_twice(cluster, tmp_path):
    cluster.put("pytorchjobs", job())
    with following(cluster, tmp_path) as follower:
        follower.says("waits for its operator")
        cluster.put("pods", pod({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}))
        follower.says("ImagePullBackOff no such image")
        cluster.logs["run-pytorchjob-master-0"] = "epoch 1\n"
        cluster.put("pods", pod(RUNS))
        follower.says("epoch 1")
        cluster.logs["run-pytorchjob-master-0"] += "epoch 2\n"  # no object changes with it
        follower.says("epoch 2")
        cluster.put("pytorchjobs", job("Succeeded"))
        assert follower.end() == 0
    assert [stage for stage in follower.stages() if stage != "starting"] == [  # as long as its log does not come
        "waits for its operator",
        "run-pytorchjob-master-0: ImagePullBackOff no such image",
        "epoch 1",
        "epoch 2",
        "Succeeded",
    ]
    for kind in ("pytorchjobs", "jobs", "pods"):
        assert (cluster.count(kind, watches=False), cluster.count(kind, watches=True)) == (1, 1), kind
    assert not cluster.count("trainjobs", watches=False), "a kind that the cluster does not know is not asked for"


def test_of_an_elastic_job_the_first_pod_is_read_whatever_started_later():
    job = thing("PyTorchJob", "run-pytorchjob-1")
    owner = {"ownerReferences": [{"uid": job["metadata"]["uid"]}]}
    first = thing("Pod", "run-pytorchjob-1-worker-0", **owner)
    spare = thing("Pod", "run-pytorchjob-1-worker-2", **owner, creationTimestamp=YOUNG)
    assert follow.leader(job, [first, spare]) == first
    assert follow.leader(job, [spare]) == spare


def test_a_log_is_read_at_most_every_two_seconds(here):
    here.logs["a"] = "epoch 1\nepoch 2\n"
    last_line, begun = follow.log_reader("default"), time.monotonic()
    assert {last_line("a", "pytorch") for _ in range(100)} == {"epoch 2"}
    assert here.count("log", watches=False) <= 1 + (time.monotonic() - begun) / 2
    assert here.requests[0][1] == {"container": "pytorch", "tailLines": "1"}


def test_a_watch_that_breaks_or_is_too_old_misses_nothing(cluster, tmp_path):
    """What changes while nobody watches is read from a new list: also that an object is gone."""
    cluster.put("pytorchjobs", job())
    cluster.put("pods", pod({"waiting": {"reason": "ErrImagePull"}}))
    with following(cluster, tmp_path) as follower:
        follower.says("ErrImagePull")
        cluster.fault = lambda path, query: (410, "too old resource version") if "watch" in query else None
        cluster.cut()
        follower.until("it watches again", lambda: cluster.count("pods", watches=True) > 1)
        cluster.drop("pods", "run-pytorchjob-master-0")
        cluster.forget()
        cluster.fault = lambda path, query: None
        follower.until("it has seen the pod go", lambda: follower.stages()[-1] == "waits for its operator")
        cluster.put("pytorchjobs", job("Succeeded"))
        assert follower.end() == 0


def test_a_server_that_comes_back_is_followed_on(cluster, tmp_path):
    cluster.put("pytorchjobs", job())
    with following(cluster, tmp_path) as follower:
        follower.says("waits for its operator")
        asked = len(cluster.requests)
        cluster.fault = lambda path, query: (503, "the server is starting")
        cluster.cut()
        follower.until("it tries again", lambda: len(cluster.requests) > asked + 6)
        cluster.fault = lambda path, query: None
        cluster.put("pytorchjobs", job("Succeeded"))
        assert follower.end() == 0


def test_a_right_that_is_taken_away_ends_it(cluster, tmp_path):
    cluster.put("pytorchjobs", job())
    with following(cluster, tmp_path) as follower:
        follower.says("waits for its operator")
        cluster.fault = lambda path, query: (403, "pods is forbidden") if path.endswith("/pods") else None
        cluster.cut()
        assert follower.end() == 2
    assert "follow: pods is forbidden: ask for a role that allows it" in "".join(follower.lines)


def test_a_job_that_is_replaced_is_awaited(here, monkeypatch):
    """Argo CD deletes a job, which has waited for hours meanwhile, and creates the next one."""
    clock = [0.0]
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: clock[-1], sleep=time.sleep))
    here.put("pytorchjobs", job())
    looks, wait = [], Watched.wait

    def counted(self: Watched, seconds: float) -> None:
        if not looks:
            clock.append(2 * 3600.0)
            here.drop("pytorchjobs", "run-pytorchjob")
            gone = lambda: not self.objects()["pytorchjobs.kubeflow.org"]  # noqa: E731
            patience.wait("it sees the job go", gone, patience.still)
        looks.append(seconds)
        if len(looks) == 2:
            here.put("pytorchjobs", job("Succeeded"))  # follow has found no job, and has not ended
        wait(self, seconds)

    monkeypatch.setattr(Watched, "wait", counted)
    assert follow.follow("run", "default", set(), 24 * 3600.0) == 0
    assert len(looks) > 1


def test_a_release_whose_job_stays_away_is_told(cluster, tmp_path):
    cluster.put("pytorchjobs", job())
    with following(cluster, tmp_path) as follower:
        follower.says("waits for its operator")
        cluster.drop("pytorchjobs", "run-pytorchjob")
        assert follower.end() == 2
    assert follower.lines[-1] == "follow: release run has no job in namespace default\n"


def test_a_release_without_a_job_is_told(cluster, tmp_path):
    cluster.put("jobs", job() | {"metadata": {"name": "other", "uid": "o", "labels": {"app": "other"}}})
    with following(cluster, tmp_path, "-n", "vision") as follower:
        assert follower.end() == 2
    assert follower.lines == ["follow: release run has no job in namespace vision\n"]
    assert all("/namespaces/vision/" in path for path, query in cluster.requests if query)


def test_only_the_kinds_that_are_asked_for_count(cluster, tmp_path):
    cluster.put("pytorchjobs", job())
    cluster.put("jobs", job("Complete") | {"kind": "Job"})
    with following(cluster, tmp_path, "--only", "job") as follower:
        assert follower.end() == 0
    assert follower.stages() == ["Complete"]


def test_a_failure_is_explained(cluster, tmp_path):
    cluster.put("pytorchjobs", job())
    with following(cluster, tmp_path) as follower:
        follower.says("waits for its operator")
        cluster.put("pytorchjobs", job("Failed"))
        assert follower.end() == 1
    assert "because: it is Failed" in "".join(follower.lines)


def test_time_that_is_up_in_a_queue_is_told_with_kueues_word(here, ended, monkeypatch):
    monkeypatch.setitem(apiserver.GROUPS, "kueue.x-k8s.io", {"v1beta1": ["workloads"]})
    queued = job("Suspended")
    queued["metadata"]["labels"] = OWN | {"kueue.x-k8s.io/queue-name": "q"}
    here.put("pytorchjobs", queued)
    quota = "insufficient unused quota for nvidia.com/gpu in flavor h200"
    waits = {"conditions": [condition("QuotaReserved", quota, "False")]}
    here.put("workloads", thing("Workload", "w", waits, ownerReferences=[{"uid": "j"}]))
    code, _, err = ended(follow.main, "run", "--timeout", "0")
    assert code == 1
    assert f"because: {quota}" in err
    assert err.endswith("follow: not ended after 0 s\n")


def test_programs_read_each_stage_as_json(cluster, tmp_path):
    cluster.put("pytorchjobs", job("Succeeded"))
    with following(cluster, tmp_path, "--json") as follower:
        assert follower.end() == 0
    (one,) = map(json.loads, follower.lines)
    assert one["seconds"] >= 0
    assert (one["object"], one["stage"]) == ("pytorchjob/run-pytorchjob", "Succeeded")


def test_programs_read_what_why_finds_as_json(cluster, tmp_path):
    cluster.put("pytorchjobs", job("Failed"))
    env = os.environ | {"KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig"))}
    done = patience.run([sys.executable, "-m", "trainyard", "why", "run", "--json"], env=env)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert (told["release"], told["namespace"]) == ("run", "default")
    (one,) = [each for each in told["findings"] if each["object"].startswith("pytorchjob/")]
    assert one.keys() == {"object", "state", "cause", "remedy"}
    assert (one["state"], one["cause"]) == ("Failed", "it is Failed")


def test_time_that_is_up_is_told_with_what_the_job_waits_for(cluster, tmp_path):
    cluster.put("pytorchjobs", job())
    with following(cluster, tmp_path, "--timeout", "1") as follower:
        assert follower.end() == 1
    assert follower.lines[-1] == "follow: not ended after 1 s\n"
    assert "pytorchjob/run-pytorchjob  Pending\n" in follower.lines
