"""`kubectl delete pod` of each kind of pod in training: all ranks save at one step, and the run resumes from it."""

import json
import re
import subprocess
import threading

import pytest

from tests import documents
from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, lines, log, until
from tests.e2e.gated import Gate
from tests.e2e.undisturbed import CONFIG, FIRST, HELM, STEPS, bit_equal, weights

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(4), pytest.mark.takes(130)]
RELEASE = "gone"
SETTINGS = ["--set", "mpijob.runPolicy.suspend=false", *HELM]
ROLES = {
    "pytorchjob": "training.kubeflow.org/replica-type=master",
    "mpijob": "training.kubeflow.org/job-role=launcher",
}


class Watch:
    """Exit codes of containers, as the pods' status tells them: a deleted pod is gone seconds later."""

    def __init__(self, namespace):
        self.codes: dict[tuple[str, str], int] = {}
        self._end = cluster.watch(self._note, "pods", namespace)

    def _note(self, pod):
        for status in pod["status"].get("containerStatuses", []):
            if ended := status["state"].get("terminated"):
                self.codes[pod["metadata"]["name"], pod["metadata"]["uid"]] = ended["exitCode"]

    def stop(self, namespace):
        """End the watch, and note what pods that are still there say: a busy machine may show the last changes late."""
        for pod in get("pods", namespace):
            self._note(pod)
        self._end()


def newest(namespace, job, key="name"):
    """Return the name of the pod that tells of a job's progress, or its uid."""
    pods = get("pods", namespace, ROLES[job])
    return max(pods, key=lambda p: p["metadata"]["creationTimestamp"])["metadata"][key] if pods else ""


def trained(namespace, job, starts, beyond=4):
    """Return whether the job's newest start is the `starts`-th and has done some steps."""
    pod = newest(namespace, job)
    text = log(pod, namespace, "pytorch" if job == "pytorchjob" else "launcher")
    resumed = re.findall(r"resumed at step (\d+)", text)
    done = [int(step) for step in re.findall(r"step +(\d+)/", text)]
    first = int(resumed[-1]) if resumed else 0
    # one that stopped after the last step that the gate allows has none to show before it is held again
    return bool(resumed) == (starts > 1) and max(done, default=first) >= first + beyond


def delete(namespace, *pods):
    """Delete pods, and return their uids."""
    uids = [p["metadata"]["uid"] for p in get("pods", namespace) if p["metadata"]["name"] in pods]
    assert len(uids) == len(pods), pods
    kubectl("delete", "pod", *pods, "-n", namespace, "--wait=false")
    return uids


def by_the_documents_command(namespace, pod):
    """Delete a pod by the command of docs/interruptions.md, which waits until it is gone; return its uid."""
    (uid,) = [p["metadata"]["uid"] for p in get("pods", namespace) if p["metadata"]["name"] == pod]
    name = {"demo-pytorchjob-1a2b3c4d-worker-0": f"{pod} -n {namespace}"}
    command = documents.text("interruptions.md", "kubectl delete pod", name)
    process = subprocess.Popen(["bash", "-euc", command], env=cluster.ENV)
    until("the pod is told to end", lambda: uid not in [p["metadata"]["uid"] for p in get("pods", namespace)
                                                       if "deletionTimestamp" not in p["metadata"]])  # fmt: skip
    threading.Thread(target=process.wait, daemon=True).start()  # it goes while the test lets the run take steps
    return [uid]


@pytest.fixture(scope="module")
def disturbed(namespace, archive, image, install, tmp_path_factory):
    """Run both jobs to the end, each with two of its pods deleted; what they left, exit codes, and the deleted pods."""
    gate = Gate(namespace, image, FIRST)
    install(RELEASE, namespace, *SETTINGS)
    gate.stand(f"{RELEASE}-results")
    watch = Watch(namespace)
    deleted = []
    try:
        until("both jobs train", lambda: all(trained(namespace, job, 1) for job in ROLES))
        names = [p["metadata"]["name"] for p in get("pods", namespace)]
        master = next(name for name in names if name.endswith("-master-0"))
        workers = {"ddp": master.replace("-master-0", "-worker-0")}
        workers["mpi"] = next(name for name in names if name.endswith("-worker-0") and name != workers["ddp"])
        deleted += delete(namespace, master, workers["mpi"])
        until("both jobs train again", lambda: gate.creep() and all(trained(namespace, job, 2, 0) for job in ROLES))
        before = {job: newest(namespace, job, "uid") for job in ROLES}
        deleted += delete(namespace, newest(namespace, "mpijob"))
        deleted += by_the_documents_command(namespace, workers["ddp"])
        until(
            "both jobs have stopped again",
            lambda: gate.creep() and all(newest(namespace, job, "uid") != uid for job, uid in before.items()),
        )
        gate.open()
        cluster.follow(RELEASE, namespace)
    finally:
        watch.stop(namespace)
    folder = tmp_path_factory.mktemp("gone")
    for job in ROLES:
        cluster.run("trainyard", "fetch", RELEASE, f"runs/{RELEASE}-{job}", folder / job, "-n", namespace)
    return folder, watch.codes, deleted


@pytest.mark.parametrize("job", ROLES)
def test_nothing_is_lost_beyond_the_step_in_flight(disturbed, job):
    run = disturbed[0] / job
    metrics = lines(run / "metrics.jsonl")
    resumed = [event for event in metrics if event["event"] == "resume"]
    assert len(resumed) == 2
    assert [event["lost_steps"] for event in resumed] == [0, 0]
    steps = [event["step"] for event in metrics if event["event"] == "train"]
    assert steps == list(range(1, STEPS + 1))
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"


def test_the_pods_status_says_saved_and_stopped(disturbed):
    _, codes, deleted = disturbed
    ended = {uid: (name, code) for (name, uid), code in codes.items()}
    for uid in deleted:
        name, code = ended[uid]
        # an MPI worker serves ssh until its ranks have saved; their code is the launcher's
        assert code == (0 if "mpijob" in name and "-worker-" in name else 143), ended
    launchers = [code for name, code in ended.values() if "-launcher-" in name]
    assert sorted(launchers) == [0, 143]  # a launcher waits for another worker where one was deleted
    assert {code for _, code in ended.values()} == {0, 143}


def test_the_weights_are_those_of_an_undisturbed_run(disturbed, namespace, calm, tmp_path):
    cluster.run("trainyard", "fetch", RELEASE, "fashion", tmp_path / "data", "-n", namespace, "--claim", "data")
    expected, found = weights(calm(tmp_path / "data", CONFIG, 2)), weights(disturbed[0] / "pytorchjob")
    assert bit_equal(expected, found)
