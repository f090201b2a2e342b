"""`trainyard runs` on a server that speaks the API's protocol."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests import patience
from tests.fakes import apiserver
from tests.unit.cluster import things
from trainyard.cluster import follow, jobs, runs, trainjobs

ROOT = Path(__file__).resolve().parents[3]
STEP = "step 40/160  epoch 2/5  loss 1.2000  lr 0.1  1,234 img/s  goodput 87 %  eta 0:01:40\n"
RUN = "resnet50 on 9 samples of 3 classes: 160 steps of 192, ddp on 16 processes (cuda, bf16), run directory /r\n"


def listed(ended, *arguments: str) -> list[dict]:
    code, out, err = ended(runs.main, "--json", *arguments)
    assert (code, err) == (0, ""), err
    return json.loads(out)


def put(cluster, job: dict, state: dict | None = things.RUNS, log: str = "", role: str = "master-0") -> None:
    """Put a job with its first pod, which prints a log."""
    cluster.put(f"{job['kind'].lower()}s", job)
    if state is not None:
        own = things.pod(job, role, state)
        cluster.put("pods", own)
        cluster.logs[own["metadata"]["name"]] = log


def test_a_run_tells_all_numbers(here, ended):
    put(
        here,
        things.pytorchjob("first", "Running"),
        log=RUN + "epoch 1/5  validated 9 samples: top1 70.50 %  loss 1.0\n" + STEP,
    )
    (found,) = listed(ended, "-n", "vision")
    wanted = {"namespace": "vision", "release": "first", "kind": "pytorchjob", "nodes": 2, "processes": 8}
    wanted |= {"state": "Running", "step": 40, "steps": 160, "eta_seconds": 100, "top1": 70.5}
    wanted |= {"images_per_second": 1234, "goodput": 0.87, "cost": None}
    assert {key: found[key] for key in wanted} == wanted


def test_gpu_hours_are_those_of_the_job_without_the_wait_for_a_node(here, ended):
    """The job took from 11:00 to 13:10, and its pod got a node at 11:10: two hours of 16 GPUs."""
    put(here, things.pytorchjob("first", "Succeeded"), things.OVER)
    (found,) = listed(ended, "-n", "vision", "--price-per-gpu-hour", "2.5")
    assert (found["gpu_hours"], found["cost"]) == (32.0, 80.0)


@pytest.mark.parametrize(
    ("conditions", "state", "word"),
    [
        ((), None, "Pending"),
        (("Suspended",), None, "Suspended"),
        (("Restarting",), None, "Restarting"),
        (("Running",), {"waiting": {"reason": "ImagePullBackOff"}}, "ImagePullBackOff"),
        (("Running",), things.RUNS, "Running"),
        (("Failed",), things.OVER, "Failed"),
        (("Succeeded",), things.OVER, "Succeeded"),
    ],
)
def test_states(here, ended, conditions, state, word):
    put(here, things.pytorchjob("first", *conditions), state)
    assert [one["state"] for one in listed(ended, "-n", "vision")] == [word]


MARKED = {"type": "Ready", "status": "False"}  # by the node controller, of a node that is lost


@pytest.mark.parametrize(
    ("ready", "after", "word"),
    [
        (MARKED, -20, "Terminating"),
        (MARKED | {"reason": "ContainersNotReady"}, 20, "Running"),  # by its kubelet
        (MARKED | {"reason": "ContainersNotReady"}, 90, "Terminating"),
        ({"type": "Ready", "status": "True"}, -20, "Running"),  # it saves
    ],
)
def test_a_pod_that_is_deleted_and_cannot_end_does_not_run(ready, after, word):
    now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    job = things.pytorchjob("first", "Running")
    pod = things.pod(job, "master-0", things.RUNS)
    pod["metadata"]["deletionTimestamp"] = (now - timedelta(seconds=after)).isoformat()
    pod["status"]["conditions"] = [ready]
    assert jobs.state(job, pod, now) == word
    told = follow.stage(job, [pod], lambda *_: "step 1", now)
    ended = f"{pod['metadata']['name']}: Terminating, and it does not end: see trainyard why"
    assert told == {"Running": "step 1", "Terminating": ended}[word]


def test_a_job_in_a_queue_and_one_that_checks_before_it_trains(here, ended):
    queued = things.pytorchjob("queued", "Suspended")
    queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    put(here, queued, None)
    put(here, things.pytorchjob("checks", "Running"), {"waiting": {"reason": "PodInitializing"}})
    waits = here.objects["pods"]["checks-pytorchjob-master-0"]
    waits["spec"]["initContainers"] = [{"name": "preflight"}]
    waits["status"]["initContainerStatuses"] = [{"name": "preflight", "state": things.RUNS}]
    here.put("pods", waits)
    assert {one["release"]: one["state"] for one in listed(ended, "-n", "vision")} == {
        "queued": "Queued",
        "checks": "Waiting",
    }


PREPARING = "preparing: 25 % · 1,500 of 6,000 images · 1 of 5 shards · 1.0 MB/s · 250 images/s · 1:30 left\n"


def thing(kind: str, name: str, release: str, part: str, spec: dict, *conditions: str, **more: object) -> dict:
    status = things.status(*conditions, startTime=things.CREATED)
    return {"kind": kind, "metadata": things.meta(name, release, part, **more), "spec": spec, "status": status}


def test_each_kind_of_job_is_listed(here, ended, monkeypatch):
    monkeypatch.setitem(apiserver.GROUPS, "trainer.kubeflow.org", {"v1alpha1": ["trainjobs", "trainingruntimes"]})
    put(here, things.pytorchjob("a", "Running", nodes=1, gpus=1))
    workers = {"Worker": {"replicas": 4, "template": things.template(2)}, "Launcher": {"template": things.template()}}
    spec = {"slotsPerWorker": 2, "mpiReplicaSpecs": workers}
    put(here, thing("MPIJob", "b-mpijob", "b", "mpijob", spec, "Succeeded"), things.OVER, role="launcher-0")
    spec = {"parallelism": 3, "template": things.template()}
    put(here, thing("Job", "c-dataset", "c", "dataset", spec), things.RUNS, PREPARING, "x")
    inside = [{"template": {"spec": {"template": things.template(4)}}}]
    runtime = {"template": {"spec": {"replicatedJobs": inside}}}
    here.put("trainingruntimes", thing("TrainingRuntime", "d", "d", "trainjob", runtime))
    spec = {"runtimeRef": {"kind": "TrainingRuntime", "name": "d"}, "trainer": {"numNodes": 2, "numProcPerNode": 4}}
    from_python = thing("TrainJob", "sent", "d", "trainjob", spec, "Complete")
    del from_python["metadata"]["labels"]  # as the SDK makes it
    here.put("trainjobs", from_python)
    found = {one["release"]: one for one in listed(ended, "-n", "vision")}
    sizes = {release: (one["kind"], one["nodes"], one["processes"]) for release, one in found.items()}
    assert sizes == {"a": ("pytorchjob", 1, 1), "b": ("mpijob", 4, 2), "c": ("dataset", 3, 1), "d": ("trainjob", 2, 4)}
    assert (found["c"]["step"], found["c"]["steps"], found["c"]["eta_seconds"]) == (1500, 6000, 90)
    assert (found["b"]["gpu_hours"], found["d"]["gpu_hours"]) == (16.0, pytest.approx(8 * 130 / 60, abs=0.01))


def test_namespaces_and_claims_choose(here, ended):
    put(here, things.pytorchjob("a", claims=("a-data", "shared")), None)
    put(here, things.pytorchjob("b", namespace="speech", claims=("shared",)), None)
    put(here, things.pytorchjob("c", namespace="speech"), None)
    assert [one["release"] for one in listed(ended, "-n", "speech")] == ["b", "c"]
    assert [one["release"] for one in listed(ended, "-A")] == ["b", "c", "a"]
    assert [one["release"] for one in listed(ended, "-A", "--claim", "shared")] == ["b", "a"]
    assert [one["release"] for one in listed(ended, "--claim", "a-data", "-n", "vision")] == ["a"]


def test_the_table_has_a_line_for_each_run_and_what_is_asked_for(here, ended):
    put(here, things.pytorchjob("first", "Running"), log=STEP)
    code, out, _ = ended(runs.main, "-n", "vision")
    head, line = out.splitlines()
    assert code == 0
    assert head.split() == [
        "RELEASE",
        "KIND",
        "NODES",
        "STATE",
        "STEP",
        "ETA",
        "TOP-1",
        "%",
        "IMG/S",
        "GOODPUT",
        "GPU",
        "H",
    ]
    assert line.split()[:8] == ["first", "pytorchjob", "2x8", "Running", "40/160", "0:01:40", "1,234", "87"]
    _, out, _ = ended(runs.main, "-A", "--price-per-gpu-hour", "2")
    assert {"NAMESPACE", "COST"} <= set(out.split())


def test_spare_pods_are_told_from_nodes_and_hold_gpus(here, ended):
    job = things.pytorchjob("first", "Running", nodes=3)
    job["spec"]["elasticPolicy"] = {"minReplicas": 2, "maxReplicas": 2}
    assert jobs.gpus(job, []) == 24
    put(here, job, log=STEP)
    (row,) = listed(ended, "-n", "vision")
    assert (row["nodes"], row["processes"], row["spares"]) == (2, 8, 1)
    assert "pytorchjob  2x8 + 1 spare  Running" in ended(runs.main, "-n", "vision")[1]


def test_spare_workers_of_an_mpijob_are_told_from_nodes():
    start = ["python", "-m", "trainers.mpi", "launch", "--np", "4"]
    launcher = {"template": {"spec": {"containers": [{"command": [*start, "--spares", "1", "--", "--spares", "9"]}]}}}
    specs = {"Worker": {"replicas": 3, "template": things.template(2)}, "Launcher": launcher}
    spec = {"slotsPerWorker": 2, "mpiReplicaSpecs": specs}
    job = thing("MPIJob", "b-mpijob", "b", "mpijob", spec)
    assert jobs.size(job) == (2, 2, 1)
    assert jobs.gpus(job, []) == 6
    launcher["template"]["spec"]["containers"][0]["command"] = [*start, "--", "--spares", "9"]
    assert jobs.size(job) == (3, 2, 0)


def test_spare_pods_of_a_trainjob_are_told_from_nodes():
    spec = {"trainer": {"numNodes": 3, "numProcPerNode": 4}}
    job = thing("TrainJob", "d-trainjob", "d", "trainjob", spec, annotations={"trainyard/spares": "1"})
    assert jobs.size(job) == (2, 4, 1)
    assert jobs.size(thing("TrainJob", "d-trainjob", "d", "trainjob", spec)) == (3, 4, 0)
    job = thing("TrainJob", "d-trainjob", "d", "trainjob", spec, annotations={"trainyard/spares": "some"})
    assert jobs.size(job) == (3, 4, 0)


def test_all_pods_are_read_as_often_for_many_jobs_as_for_few():
    def count(jobs: int) -> int:
        many = [things.pytorchjob(f"run-{i}", "Running") for i in range(jobs)]
        pods = things.Counted(things.pod(job, "master-0", {"waiting": {}}) for job in many)
        kinds: dict[str, list[dict]] = {key: [] for key in (*follow.JOBS, trainjobs.RUNTIMES, trainjobs.TRAINJOBS)}
        objects = kinds | {"pytorchjobs.kubeflow.org": many, "pods": pods}
        rows = runs.table_of(objects, runs.Logs(), datetime.now(UTC))
        assert [bool(row.gpu_hours) for row in rows] == [True] * jobs  # since its pod started
        return pods.read

    assert count(20) == count(2)


def test_no_runs_are_told_and_are_no_error(here, ended):
    assert ended(runs.main, "-n", "vision") == (0, "", "no runs in namespace vision\n")
    assert listed(ended, "-A") == []


def test_a_cluster_that_cannot_be_read_ends_2(here, ended):
    here.fault = lambda path, query: (403, "pods is forbidden") if path.endswith("/pods") else None
    code, out, err = ended(runs.main, "-n", "vision")
    assert (code, out) == (2, "")
    assert err.startswith("runs: pods is forbidden: ask for a role")


def test_watch_wants_a_terminal_or_json(here, ended):
    code, _, err = ended(runs.main, "--watch")
    assert code == 2
    assert "--watch draws on a terminal: add --json" in err


@contextlib.contextmanager
def watching(cluster, folder: Path):
    """Run `trainyard runs --watch --json` while the block runs; give its lines."""
    env = os.environ | {"KUBECONFIG": str(cluster.kubeconfig(folder / "kubeconfig"))}
    command = [sys.executable, "-m", "trainyard", "runs", "-n", "vision", "--watch", "--json"]
    with subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        lines: list[list[dict]] = []
        reader = threading.Thread(target=lambda: lines.extend(map(json.loads, process.stdout or ())))
        reader.start()
        try:
            yield lines
        finally:
            process.kill()
            reader.join()


def test_a_watch_tells_each_change_of_an_object_or_a_log_and_reads_what_is_new(tmp_path):
    with apiserver.running() as cluster:
        put(cluster, things.pytorchjob("first", "Running"), log=STEP)
        with watching(cluster, tmp_path) as lines:

            def shows(**wanted: object) -> None:
                patience.wait(lambda: f"{wanted}; it said {lines[-1:]}", lambda: lines and lines[-1] and
                              wanted.items() <= lines[-1][0].items(), patience.still)  # fmt: skip

            shows(step=40, state="Running")
            cluster.logs["first-pytorchjob-master-0"] += STEP.replace(" 40/", " 41/")
            shows(step=41)
            put(cluster, things.pytorchjob("first", "Failed"), None)
            shows(state="Failed", step=41)
        reads = [query for path, query in cluster.requests if path.endswith("/log")]
        assert reads[0]["tailLines"] == "1000"
        assert all("sinceSeconds" in query for query in reads[1:])
        assert cluster.count("pytorchjobs", watches=False) == 1


def test_the_log_of_a_job_that_has_ended_is_read_again_where_the_kubelet_did_not_give_it(here):
    job, logs = things.pytorchjob("first", "Succeeded"), runs.Logs()
    put(here, job, things.OVER, log=STEP)
    pod = things.pod(job, "master-0", things.OVER)
    here.fault = lambda path, query: (500, "net/http: TLS handshake timeout") if path.endswith("/log") else None
    assert logs.look(pod).step is None
    here.fault = lambda path, query: None
    assert logs.look(pod).step == 40


def test_a_terminal_shows_each_change_until_it_is_interrupted(tmp_path):
    with apiserver.running() as cluster:
        put(cluster, things.pytorchjob("first", "Running"), log=STEP)
        env = os.environ | {"KUBECONFIG": str(cluster.kubeconfig(tmp_path / "kubeconfig")), "COLUMNS": "120"}
        # a shell's background job ignores the signal, and so would this one
        command = ["env", "--default-signal=INT", sys.executable, "-m", "trainyard", "runs", "-n", "vision", "--watch"]
        ours, theirs = pty.openpty()
        shown = bytearray()

        def read() -> None:
            with contextlib.suppress(OSError):  # the process has closed its end
                while piece := os.read(ours, 4096):
                    shown.extend(piece)

        with subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            reader = threading.Thread(target=read)
            reader.start()
            try:
                patience.wait(lambda: f"a line; it shows {shown[-500:]!r}", lambda: b"40/160" in shown, patience.still)
                cluster.logs["first-pytorchjob-master-0"] += STEP.replace(" 40/", " 41/")
                patience.wait(lambda: f"a line; it shows {shown[-500:]!r}", lambda: b"41/160" in shown, patience.still)
                process.send_signal(signal.SIGINT)
                patience.wait("its end", lambda: process.poll() is not None, patience.still)
            finally:
                process.kill()
                reader.join()
        os.close(ours)
        assert process.returncode == 130
        assert b"runs: stopped" in shown
