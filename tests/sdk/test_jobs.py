"""What the scripts' options request of a node, and the message without a cluster."""

import os
import sys
from pathlib import Path

import jobs
import pytest
from kubeflow.trainer.backends.kubernetes.utils import get_container_devices, get_resources_per_node

from tests import patience

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "sdk"


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ("--gpus 8", {"nvidia.com/gpu": 8}),  # and the runtime's CPUs: a limit of one would hold up eight GPUs
        ("--gpus 8 --cpu 96 --memory 900Gi", {"nvidia.com/gpu": 8, "cpu": "96", "memory": "900Gi"}),
        ("--gpus 0", {"cpu": "1"}),
        ("--gpus 0 --cpu 200m --memory 1Gi", {"cpu": "200m", "memory": "1Gi"}),
    ],
)
def test_resources_are_such_as_the_sdk_can_read(options: str, limits: dict) -> None:
    given = jobs.options("Test", nodes=2, gpus=1).parse_args(["--runtime", "lab", *options.split()])
    resources = get_resources_per_node(jobs.resources(given))
    assert {name: amount.actual_instance for name, amount in resources.limits.items()} == limits
    assert get_container_devices(resources)


def test_no_cluster_is_told_in_words(tmp_path) -> None:
    nowhere = tmp_path / "kubeconfig"
    nowhere.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}],"
        " users: [{name: c, user: {}}], contexts: [{name: c, context: {cluster: c, user: c}}]}"
    )
    done = patience.run(
        [sys.executable, SCRIPTS / "watch.py", "-n", "none"], env={**os.environ, "KUBECONFIG": str(nowhere)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: cannot list TrainJobs: " in done.stderr
    assert "Connection refused" in done.stderr
    assert "check KUBECONFIG" in done.stderr
