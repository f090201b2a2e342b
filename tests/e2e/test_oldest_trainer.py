"""A TrainJob trains on the oldest Kubeflow Trainer that the chart renders for, with the JobSet that it asks for.

The newest runs in the other tests; those between, and a run that moves through all, in test_operator_versions.py.
"""

import json
import re
from collections.abc import Iterator

import pytest

from tests.e2e import cluster, exchange
from tests.e2e.cluster import get, kubectl, log, why

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.ranks(2),
    pytest.mark.takes(60),
    pytest.mark.skipif(not cluster.OWN, reason="it puts another Trainer on the one-node cluster"),
]
RELEASE, VERSION, STEPS = "oldest", "2.1", 3
# In place of the dataset's Job, which is no operator's
MODULE = """
from torchvision.datasets import FakeData

def images(split):
    return FakeData(64, (3, 16, 16), 2, random_offset=int(split == "val"))
"""
SETTINGS = {
    "global.training.operator": "trainjob",
    "global.training.config.data.dataset": "fake:images",
    "global.training.config.data.image_size": 16,
    "global.training.config.model.num_classes": 2,
    "global.training.config.batch.global": 16,
    "global.training.config.max_steps": STEPS,
    "global.training.config.wandb.mode": "off",
    "global.training.config.log.console_seconds": 0.001,
    "global.training.env[0].name": "PYTHONPATH",
    "global.training.env[0].value": "/fake",
    "global.training.extraVolumes[0].name": "fake",
    "global.training.extraVolumes[0].configMap.name": "fake",
    "global.training.extraVolumeMounts[0].name": "fake",
    "global.training.extraVolumeMounts[0].mountPath": "/fake",
}


@pytest.fixture
def oldest(namespace, trainer_v2) -> Iterator[exchange.Versions]:
    """That Trainer while the test runs; the release goes before the newest comes back."""
    try:
        yield exchange.put("trainer", VERSION)
    finally:
        cluster.helm("uninstall", RELEASE, "-n", namespace, "--wait", "--ignore-not-found")
        exchange.put("trainer", exchange.NEWEST["trainer"])


@pytest.mark.shows("trains with DDP", "Kubeflow Trainer", "JobSet")
def test_a_trainjob_trains_on_two_nodes(oldest, namespace, install):
    assert oldest == {"Kubeflow Trainer": "2.1.0", "JobSet": "0.10.1"}
    module = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fake"}, "data": {"fake.py": MODULE}}
    kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(module))
    given = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    own = ("--set-string", f"trainjob.version={VERSION}")
    install(RELEASE, namespace, *given, *own, values="examples/sdk/runtime.yaml")
    cluster.follow(RELEASE, namespace)
    assert re.search(r"trainjob/\S+ +Complete", why(RELEASE, namespace))
    (first,) = get("pods", namespace, "batch.kubernetes.io/job-completion-index=0")
    said = log(first["metadata"]["name"], namespace, "node")
    assert "ddp on 2 processes" in said
    assert re.search(rf"step +{STEPS}/{STEPS}", said), said
