"""Gangs by coscheduling: where three pods of four have room, one job starts whole and the other waits whole."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e import cluster, owners
from tests.e2e.cluster import get, kubectl, until, why
from tests.e2e.flux import end

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.alone, pytest.mark.takes(300)]
SCHEDULER = "gangs"
ROOM = "trainyard.test/room"  # what each pod takes one of
GROUPS = "podgroups.scheduling.x-k8s.io"
OPERATORS = {
    "pytorchjob": ("kubeflow", "training-operator", f"--gang-scheduler-name={SCHEDULER}"),
    "mpijob": ("mpi-operator", "mpi-operator", f"-gang-scheduling={SCHEDULER}"),
    "trainjob": ("kubeflow-system", "kubeflow-trainer-controller-manager", ""),
}
SETTINGS = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "clientConnection": {"kubeconfig": cluster.KUBECONFIG},
    "profiles": [{
        "schedulerName": SCHEDULER,
        "plugins": {
            "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
            "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
        },
    }],
}  # fmt: skip
VALUES = {
    "global": {
        "scheduling": {"schedulerName": SCHEDULER},
        "storage": {"data": {"size": "10Mi"}, "results": {"size": "10Mi"}},
        "training": {
            "nodes": 2, "gpusPerNode": 0, "processesPerNode": 1, "shmSize": "16Mi", "command": ["sleep", "86400"],
            "resources": {
                "requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "2Gi", ROOM: 1},
            },
        },
    },
    "dataset": {"enabled": False},
}  # fmt: skip


def deployment(name: str) -> dict:
    """Return an operator's Deployment."""
    (found,) = get("deployments", OPERATORS[name][0], fields=f"metadata.name={OPERATORS[name][1]}")
    return found


def start_anew(name: str, arguments: list[str]) -> None:
    """Start an operator with these arguments, and wait until it is the only one."""
    space, one, _ = OPERATORS[name]
    path = "/spec/template/spec/containers/0/args"
    patch = [{"op": "replace" if arguments else "remove", "path": path, "value": arguments}]
    if deployment(name)["spec"]["template"]["spec"]["containers"][0].get("args", []) != arguments:
        kubectl("-n", space, "patch", "deployment", one, "--type=json", "-p", json.dumps(patch))
    else:
        kubectl("-n", space, "rollout", "restart", f"deployment/{one}")
    kubectl("-n", space, "rollout", "status", f"deployment/{one}", "--timeout=24h")


def give_room(places: int | None) -> None:
    """Let the node have room for so many pods of the test; none where the test is over."""
    value = {ROOM: None if places is None else str(places)}
    for node in get("nodes", None):
        patch = json.dumps({"status": {"capacity": value, "allocatable": value}})
        kubectl("patch", "node", node["metadata"]["name"], "--subresource=status", "--type=merge", "-p", patch)


@pytest.fixture(scope="module")
def gangs(trainer_v2, tmp_path_factory) -> Iterator[None]:
    """Run a scheduler of gangs, with operators that know of it."""
    folder = tmp_path_factory.mktemp("scheduler")
    program = cluster.run("hack/coscheduling/build").stdout.strip()
    crd = yaml.safe_load(Path(cluster.run("hack/coscheduling/build", "--crd").stdout.strip()).read_text())
    crd["metadata"]["labels"] = owners.LABELS
    (folder / "settings.yaml").write_text(json.dumps(SETTINGS))
    before = {name: deployment(name)["spec"]["template"]["spec"]["containers"][0].get("args", []) for name in OPERATORS}
    with contextlib.ExitStack() as stack:
        stack.callback(give_room, None)
        give_room(3)
        stack.callback(owners.delete, "customresourcedefinitions", GROUPS)
        kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(crd))
        kubectl("wait", "--for=condition=Established", f"crd/{GROUPS}", "--timeout=24h")
        log = stack.enter_context((folder / "scheduler.log").open("w"))
        command = ["setpriv", "--pdeathsig=KILL", program, f"--config={folder / 'settings.yaml'}", "--secure-port=0"]
        stack.callback(end, subprocess.Popen(command, stdout=log, stderr=log))
        for name, (*_, flag) in OPERATORS.items():
            stack.callback(start_anew, name, before[name])
            start_anew(name, [*before[name], flag] if flag else before[name])
        yield


def pods(release: str, namespace: str) -> list[dict]:
    """Return a release's training pods; an MPIJob's launcher needs no room."""
    found = get("pods", namespace, f"app.kubernetes.io/instance={release}")
    return [pod for pod in found if ROOM in pod["spec"]["containers"][0]["resources"].get("limits", {})]


def refused(release: str, namespace: str) -> list[dict]:
    """Return a release's pods that a scheduler has found no place for."""
    found = ((pod, pod.get("status", {}).get("conditions", [])) for pod in pods(release, namespace))
    return [pod for pod, said in found if any(c["type"] == "PodScheduled" and c["status"] == "False" for c in said)]


def running(release: str, namespace: str) -> bool:
    """Whether both pods of a release run."""
    return [pod["status"].get("phase") for pod in pods(release, namespace)] == ["Running"] * 2


@pytest.fixture
def two_jobs(request, gangs, namespace, install, tmp_path) -> Iterator[tuple[str, str]]:
    """Install two releases of two pods each, one after the other; the first has room."""
    job, whole = request.param
    first, second = (f"{job}-{'gang' if whole else 'plain'}-{number}" for number in (1, 2))
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps(VALUES))
    settings = f"global.training.operator={job},global.scheduling.gang.enabled={str(whole).lower()}"
    try:
        install(first, namespace, "--set", settings, values=str(values))
        until(lambda: why(first, namespace), lambda: running(first, namespace))
        install(second, namespace, "--set", settings, values=str(values))
        yield first, second
    finally:
        for release in (first, second):
            cluster.helm("uninstall", release, "-n", namespace, "--wait", "--ignore-not-found")


@pytest.mark.parametrize("two_jobs", [(job, True) for job in OPERATORS], ids=list(OPERATORS), indirect=True)
def test_a_job_that_does_not_fit_takes_no_place_until_all_of_it_fits(two_jobs, namespace):
    first, second = two_jobs
    until(lambda: why(second, namespace), lambda: len(refused(second, namespace)) == 2)
    assert [pod["spec"].get("nodeName") for pod in pods(second, namespace)] == [None, None]
    assert len(get(GROUPS, namespace)) == 2
    cluster.helm("uninstall", first, "-n", namespace, "--wait")
    until(lambda: why(second, namespace), lambda: running(second, namespace))


# the other two operators, where they know of gangs, make one of every job
@pytest.mark.parametrize("two_jobs", [("trainjob", False)], ids=["trainjob"], indirect=True)
def test_without_a_gang_half_of_it_takes_a_place_and_waits(two_jobs, namespace):
    _, second = two_jobs
    until(lambda: why(second, namespace), lambda: len(refused(second, namespace)) == 1)
    assert sorted(bool(pod["spec"].get("nodeName")) for pod in pods(second, namespace)) == [False, True]
