"""Commands of a user who may list jobs of one kind alone, as with a role for PyTorchJobs on a cluster that has more."""

import re

from tests.unit.cluster import things
from trainyard.cluster import follow, logs, runs, why

SAID = 'mpijobs.kubeflow.org is forbidden: User "ada" cannot list resource "mpijobs"'


def refuse(here, plural: str) -> None:
    """Let the API server refuse lists of a kind."""
    said = SAID.replace("mpijobs", plural)
    here.fault = lambda path, query: (403, said) if path.endswith(f"/{plural}") else None


def test_a_kind_of_others_that_may_not_be_listed_hinders_no_command(here, ended):
    job = things.pytorchjob("run", "Succeeded", nodes=1)
    here.put("pytorchjobs", job)
    here.put("pods", things.pod(job, "master-0", things.OVER))
    here.logs["run-pytorchjob-master-0"] = "the end\n"
    refuse(here, "mpijobs")
    _, said, err = ended(why.main, "run", "-n", "vision")
    assert err == ""
    assert re.search(rf"mpijobs.kubeflow.org +not looked at\n    because: {re.escape(SAID)}", said), said
    assert re.search(r"pytorchjob/run-pytorchjob +Succeeded", said), said
    code, said, err = ended(follow.main, "run", "-n", "vision")
    assert (code, err) == (0, "")
    assert said.endswith("pytorchjob/run-pytorchjob  Succeeded\n")
    assert ended(logs.main, "run", "-n", "vision")[:2] == (0, "the end\n")
    code, said, err = ended(runs.main, "-n", "vision")
    assert code == 0
    assert "Succeeded" in said
    assert err.startswith(f"runs: not looked at: {SAID}")


def test_rank_0_is_the_masters_where_jobs_may_not_be_listed(here, ended):
    job = things.pytorchjob("run", "Running", nodes=2, gpus=1)
    for role in ("master-0", "worker-0"):
        here.put("pods", things.pod(job, role, things.RUNS))
        here.logs[f"run-pytorchjob-{role}"] = f"{role}\n"
    refuse(here, "pytorchjobs")
    assert ended(logs.main, "run", "-n", "vision")[:2] == (0, "master-0\n")
    assert ended(logs.main, "run", "-n", "vision", "--rank", "1")[:2] == (0, "worker-0\n")


def test_events_without_words_hinder_nothing(here, ended):
    job = things.pytorchjob("run", "Created")
    pod = things.pod(job, "master-0", {"waiting": {"reason": "ContainerCreating"}})
    pod["status"] |= {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    here.put("pytorchjobs", job)
    here.put("pods", pod)
    for one in (job, pod):
        about = {"involvedObject": {"uid": one["metadata"]["uid"]}, "type": "Warning", "reason": "Strange"}
        here.put("events", {"metadata": {"name": one["metadata"]["name"]}, "lastTimestamp": things.ENDED, **about})
    code, said, err = ended(why.main, "run", "-n", "vision")
    assert (code, err) == (0, "")
    assert "pod/run-pytorchjob-master-0" in said


def test_policies_and_events_that_may_not_be_listed_are_named(here, ended):
    here.put("pytorchjobs", things.pytorchjob("run", "Succeeded"))
    for plural in ("networkpolicies", "events"):
        refuse(here, plural)
        _, said, err = ended(why.main, "run", "-n", "vision")
        assert err == ""
        assert re.search(rf"{plural} +not looked at", said), said


def test_where_nothing_else_is_there_the_refusal_is_told(here, ended):
    refuse(here, "pytorchjobs")
    for main, *words in ((follow.main, "run"), (logs.main, "run"), (runs.main,)):
        code, _, said = ended(main, *words, "-n", "vision")
        assert code == 2
        assert "pytorchjobs.kubeflow.org is forbidden" in said
        assert "ask for a role that allows it" in said
    said = ended(why.main, "run", "-n", "vision")[1]
    assert "holds nothing that runs for it, as far as this user may look" in said


def test_logs_that_may_not_be_read_are_not_awaited(here, ended):
    job = things.pytorchjob("run", "Running", nodes=1)
    here.put("pytorchjobs", job)
    here.put("pods", things.pod(job, "master-0", things.RUNS))
    here.fault = lambda path, query: (403, "pods/log is forbidden") if path.endswith("/log") else None
    for more in ((), ("-f",)):
        code, _, err = ended(logs.main, "run", "-n", "vision", *more)
        assert code == 2
        assert err.startswith("logs: pods/log is forbidden: ask for a role that allows it")


def test_that_logs_may_not_be_read_is_told_once(here, ended):
    job = things.pytorchjob("run", "Running")
    here.put("pytorchjobs", job)
    here.put("pods", things.pod(job, "master-0", things.RUNS))
    here.put("pods", things.pod(job, "worker-0", things.RUNS))
    said = 'pods "run-pytorchjob-master-0" is forbidden: User "ada" cannot get resource "pods/log"'
    here.fault = lambda path, query: (403, said) if path.endswith("/log") else None
    code, out, err = ended(why.main, "run", "-n", "vision")
    assert (code, err, out.count('pods/log"')) == (0, "", 1), out
    assert re.search(rf"pods/log +not looked at\n    because: {re.escape(said)}: ask for a role", out), out
    code, out, err = ended(runs.main, "-n", "vision")
    assert (code, "Running" in out) == (0, True)
    assert err.startswith(f"runs: not looked at: {said}: ask for a role")
    assert follow.log_reader("vision")("run-pytorchjob-master-0", "main").startswith(f"{said}: ask for a role")


def test_nodes_of_pods_that_have_not_started_are_looked_at_by_who_may(here, ended):
    job = things.pytorchjob("run", "Created")
    here.put("pytorchjobs", job)
    for role, phase in (("master-0", "Running"), ("worker-0", "Pending")):
        pod = things.pod(job, role, {"waiting": {"reason": "ContainerCreating"}})
        pod["spec"] = pod["spec"] | {"nodeName": f"gpu-{role[-8:]}"}
        placed = [{"type": "PodScheduled", "status": "True"}]
        here.put("pods", pod | {"status": pod["status"] | {"phase": phase, "conditions": placed}})
    ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": things.ENDED}
    here.put("nodes", {"metadata": {"name": "gpu-worker-0"}, "status": {"conditions": [ready]}})
    code, said, _ = ended(why.main, "run", "-n", "vision")
    assert (code, "its node gpu-worker-0 has not answered since" in said) == (1, True), said
    assert [path for path, _ in here.requests if "/nodes" in path] == ["/api/v1/nodes/gpu-worker-0"]
    here.fault = lambda path, query: (403, "nodes is forbidden") if "/nodes/" in path else None
    code, said, err = ended(why.main, "run", "-n", "vision")
    assert (code, err, "node" in said) == (0, "", False), said


def test_pods_must_be_listed(here, ended):
    here.put("pytorchjobs", things.pytorchjob("run", "Succeeded"))
    refuse(here, "pods")
    for main in (follow.main, logs.main, why.main):
        assert ended(main, "run", "-n", "vision")[0] == 2
