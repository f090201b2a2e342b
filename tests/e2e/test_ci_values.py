"""The values sets of charts/trainyard/ci that train, run to their end and upgraded; chart-testing installs them."""

import pytest
import yaml

from tests.e2e import cluster
from tests.e2e.cluster import get, until, why

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.takes(120)]
CI = cluster.ROOT / "charts" / "trainyard" / "ci"
KINDS = {"pytorchjob": "pytorchjobs", "mpijob": "mpijobs", "trainjob": "trainjobs"}
# What this machine needs to run them: its archive, and one epoch
HERE = [
    "--set", "dataset.enabled=true,dataset.source.url=http://archive/fashion.zip,global.dataset.name=fashion",
    "--set", "global.training.config.epochs=1",
    "--set", "global.training.resources.requests.cpu=100m,global.training.resources.requests.memory=256Mi",
    "--set", "global.training.resources.limits.memory=4Gi,global.training.config.wandb.mode=off",
]  # fmt: skip


def identities(kind: str, namespace: str, release: str) -> dict[str, str]:
    """Return the uids of a release's jobs of a kind, by name."""
    found = get(kind, namespace, f"app.kubernetes.io/instance={release}")
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in found}


def ended(kind: str, namespace: str, release: str) -> bool:
    """Return whether a release's only job of a kind has ended well."""
    (one,) = get(kind, namespace, f"app.kubernetes.io/instance={release}")
    held = [c["type"] for c in one.get("status", {}).get("conditions", []) if c["status"] == "True"]
    assert "Failed" not in held, why(release, namespace)
    return bool({"Succeeded", "Complete"} & set(held))


@pytest.mark.parametrize("job", KINDS)
def test_it_runs_to_its_end_and_an_upgrade_leaves_it_alone(job, namespace, archive, install, request):
    if job == "trainjob":
        request.getfixturevalue("trainer_v2")
    values = CI / f"{job}-values.yaml"
    assert yaml.safe_load(values.read_text())["global"]["training"]["nodes"] == 2
    release = f"ci-{job}"
    install(release, namespace, *HERE, values=values)
    try:
        until(lambda: why(release, namespace), lambda: ended(KINDS[job], namespace, release))
        before = identities(KINDS[job], namespace, release)
        assert len(before) == 1
        install(release, namespace, *HERE, values=values)
        install(release, namespace, *HERE, "--set", "global.labels.team=vision", values=values)
        assert identities(KINDS[job], namespace, release) == before, "what has run is not run again"
        assert ended(KINDS[job], namespace, release)
    finally:
        cluster.helm("uninstall", release, "-n", namespace, "--wait", "--ignore-not-found")
