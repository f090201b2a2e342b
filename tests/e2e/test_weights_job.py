"""The dataset's Job fetches pretrained weights before the pictures, trainers wait for both; later it fetches alone."""

import base64
import hashlib
from io import BytesIO

import pytest

from tests.e2e.cluster import get, kubectl, log, until

pytestmark = [pytest.mark.e2e, pytest.mark.takes(60)]
RELEASE = "tuned"
MODEL = "torchvision:shufflenet_v2_x0_5"
SETTINGS = [
    "--set", "mpijob.enabled=false", "--set", "global.training.nodes=1", "--set", "global.training.processesPerNode=1",
    "--set", "global.training.config.max_steps=2", "--set", "global.training.config.wandb.mode=off",
    "--set", f"global.training.config.model.name={MODEL}", "--set", "global.training.config.model.freeze=backbone",
    "--set", "global.training.config.model.zero_init_last_bn=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def address(namespace, archive) -> str:
    """Weights beside the archive on its server, under a name that ends in the first digits of their hash."""
    import torch

    from trainyard.models import factory

    buffer = BytesIO()
    torch.save(factory.create(MODEL, 1000).state_dict(), buffer)
    name = f"net-{hashlib.sha256(buffer.getvalue()).hexdigest()[:8]}.pth"
    text = base64.b64encode(buffer.getvalue()).decode()
    kubectl("exec", "-i", "archive", "-n", namespace, "--", "sh", "-c", f"base64 -d > /srv/{name}", stdin=text)
    return archive.replace("fashion.zip", name)


def job_pod(namespace: str) -> str:
    pods = get("pods", namespace, f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/name=dataset")
    done = [pod for pod in pods if pod["status"]["phase"] == "Succeeded"]
    newest = sorted(done, key=lambda pod: pod["metadata"]["creationTimestamp"])
    return newest[-1]["metadata"]["name"] if newest else ""


def test_the_job_fetches_the_weights_and_the_run_starts_from_them(namespace, archive, address, install):
    pretrained = f"global.training.config.model.pretrained={address}"
    install(RELEASE, namespace, *SETTINGS, "--set", f"dataset.source.url={archive}", "--set", pretrained)
    first = until("the dataset's Job done", lambda: job_pod(namespace))
    assert "kept as /data/weights/net-" in log(first, namespace, "weights-0")
    selector = f"app.kubernetes.io/instance={RELEASE},training.kubeflow.org/job-role=master"
    until("training done", lambda: [p for p in get("pods", namespace, selector) if p["status"]["phase"] == "Succeeded"])
    master = get("pods", namespace, selector)[0]["metadata"]["name"]
    assert "weights: /data/weights/net-" in log(master, namespace, "preflight")
    assert "finished: top1" in log(master, namespace, "pytorch")

    install(RELEASE, namespace, *SETTINGS, "--set", "dataset.source.kind=none,dataset.source.url=", "--set", pretrained)
    until("a Job that fetches weights alone", lambda: job_pod(namespace) not in ("", first))
    assert "is here already" in log(job_pod(namespace), namespace, "prepare")
