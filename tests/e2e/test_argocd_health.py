"""Argo CD's own program judges the health of every object in deploy/argocd/resource_customizations, as its tests would.

It reads the patch that a platform team applies to argocd-cm, and runs its Lua in the virtual machine of the controller.
Most of the objects are what the operators of the one-node cluster have written.
"""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests import patience
from tests.e2e import cluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.takes(10),
    pytest.mark.skipif(not cluster.OWN, reason="Argo CD's program is built with the one-node cluster"),
]
DEPLOY = cluster.ROOT / "deploy" / "argocd"
CUSTOMIZATIONS = DEPLOY / "resource_customizations"
NONE = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: argocd-cm}\n"


def cases() -> list:
    """Return the path of each object and the health it must have, from health_test.yaml as Argo CD lays it out."""
    found = []
    for path in sorted(CUSTOMIZATIONS.glob("*/*/health_test.yaml")):
        for case in yaml.safe_load(path.read_text())["tests"]:
            name = f"{path.parent.name}-{Path(case['inputPath']).stem}"
            found.append(pytest.param(path.parent / case["inputPath"], case["healthStatus"], id=name))
    return found


@pytest.fixture(scope="module")
def program(argocd) -> str:
    """Argo CD's command line, built when Argo CD was started."""
    return f"{cluster.run('hack/cluster/extra', '--where', 'argocd').stdout.strip()}/bin/argocd"


def health(program: str, path: Path, settings: Path) -> dict[str, str]:
    """Return what Argo CD says of an object under the settings of an argocd-cm."""
    command = [
        program,
        "admin",
        "settings",
        "resource-overrides",
        "health",
        str(path),
        "--argocd-cm-path",
        str(settings),
    ]

    def judged() -> "subprocess.CompletedProcess[str] | None":
        done = patience.run(command)
        # Argo CD gives a check one second, for which a busy machine may not let it run
        return None if "context deadline exceeded" in done.stderr else done

    done = patience.wait("Argo CD's answer in time", judged, patience.still)
    assert done.stdout.startswith("STATUS: "), done.stdout + done.stderr
    first, second = done.stdout.rstrip("\n").split("\n", 1)
    return {"status": first.removeprefix("STATUS: "), "message": second.removeprefix("MESSAGE: ")}


@pytest.mark.parametrize(("path", "wanted"), cases())
def test_the_health_of_an_object_is_as_its_test_says(program, path, wanted):
    assert health(program, path, DEPLOY / "health-checks.yaml") == wanted


def test_the_built_in_check_calls_a_job_that_runs_again_healthy(program, tmp_path):
    """Why there is a check of Jobs: without it, a Job that Kueue has resumed is healthy while it runs."""
    none, resumed = tmp_path / "argocd-cm.yaml", CUSTOMIZATIONS / "batch" / "Job" / "testdata" / "resumed.yaml"
    none.write_text(NONE)
    assert yaml.safe_load(resumed.read_text())["status"]["active"] == 1
    assert health(program, resumed, none)["status"] == "Healthy"
