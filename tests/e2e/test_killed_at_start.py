"""A pod whose memory limit does not hold PyTorch is killed as it starts: the run counts that, and why says so."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.e2e import cluster
from tests.e2e.cluster import get, until
from tests.e2e.saying import says

pytestmark = [pytest.mark.e2e, pytest.mark.takes(60)]
# The launcher alone, which loads torch, needs more
LITTLE = [
    "--set", "mpijob.enabled=false,pytorchjob.enabled=true,dataset.enabled=false,global.training.nodes=1",
    "--set", "global.training.config.data.dataset=synthetic,global.training.shmSize=16Mi",
    "--set", "global.training.resources.limits.memory=128Mi,global.training.resources.requests.memory=64Mi",
]  # fmt: skip


@contextlib.contextmanager
def keeping_a_pod(namespace: str) -> Iterator[None]:
    """Keep the first pod, with its status, by a finalizer: the operator deletes a killed one before a slow look."""
    kept: list[str] = []

    def patch(pod: str, finalizers: str) -> bool:
        change = f'{{"metadata": {{"finalizers": {finalizers}}}}}'
        done = cluster.run("kubectl", "patch", "pod", pod, "-n", namespace, "--type=merge", "-p", change, check=False)
        return done.returncode == 0

    def keep(pod: dict) -> None:
        name = pod["metadata"]["name"]
        if not kept and patch(name, '["example.com/kept"]'):  # it is refused where the pod is being deleted
            kept.append(name)

    end = cluster.watch(keep, "pods", namespace)
    try:
        yield
    finally:
        end()
        for name in kept:
            patch(name, "null")


def test_a_pod_that_is_killed_as_it_starts_is_recreated_a_few_times_and_then_its_job_fails(namespace, install):
    with keeping_a_pod(namespace):
        install("oom", namespace, *LITTLE)
        says("oom", namespace, "OOMKilled", "raise resources.limits.memory")

    def failed() -> list[dict]:
        (job,) = get("pytorchjobs", namespace, "app.kubernetes.io/instance=oom")
        held = job["status"].get("conditions", [])
        return [one for one in held if (one["type"], one["status"]) == ("Failed", "True")]

    until("the job fails", failed)
    text = cluster.why("oom", namespace)
    assert "4 starts of this pod in a row were killed before training began" in text
    cluster.helm("uninstall", "oom", "-n", namespace, "--wait")
