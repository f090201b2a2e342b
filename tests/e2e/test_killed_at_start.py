"""A pod whose memory limit does not hold PyTorch is killed as it starts: the run counts that, and why says so."""

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


def test_a_pod_that_is_killed_as_it_starts_is_recreated_a_few_times_and_then_its_job_fails(namespace, install):
    install("oom", namespace, *LITTLE)
    assert "raise resources.limits.memory" in says("oom", namespace, "OOMKilled")

    def failed() -> list[dict]:
        (job,) = get("pytorchjobs", namespace, "app.kubernetes.io/instance=oom")
        held = job["status"].get("conditions", [])
        return [one for one in held if (one["type"], one["status"]) == ("Failed", "True")]

    until("the job fails", failed)
    text = cluster.why("oom", namespace)
    assert "4 starts of this pod in a row were killed before training began" in text
    cluster.helm("uninstall", "oom", "-n", namespace, "--wait")
