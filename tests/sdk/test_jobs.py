"""What the scripts' options request of a node, a log that comes late, and the message without a cluster."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    import jobs  # late, here and below: each worker that collects the SDK's tests would take a second
    from kubeflow.trainer.backends.kubernetes.utils import get_container_devices, get_resources_per_node

    given = jobs.options("Test", nodes=2, gpus=1).parse_args(["--runtime", "lab", *options.split()])
    resources = get_resources_per_node(jobs.resources(given))
    assert {name: amount.actual_instance for name, amount in resources.limits.items()} == limits
    assert get_container_devices(resources)


class Busy:
    """A client of a cluster whose kubelet gives the log at the second request."""

    def __init__(self, status: int) -> None:
        self.status, self.asked = status, 0

    def get_job_logs(self, job: str, follow: bool) -> Iterator[str]:
        from kubernetes import client as kubernetes

        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("Failed to read logs") from kubernetes.ApiException(self.status, "refused")
        yield f"{job} trains"


@pytest.mark.parametrize(
    ("status", "said"), [(500, "[node-0] run trains\n"), (404, "warning: the log broke off: (404)")]
)
def test_a_log_that_a_busy_kubelet_does_not_give_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, said: str
) -> None:
    import following

    monkeypatch.setattr(following, "AGAIN", 0.0)
    client: Any = Busy(status)
    following._print_log(client, "run")
    assert capsys.readouterr().out.startswith(said)


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
