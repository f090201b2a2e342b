"""The files of deploy/argocd: valid against Argo CD's own CRDs, and the charts that they deploy render.

What the running controllers do with them is in tests/e2e/test_argocd.py.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from . import helm

ARGOCD = helm.ROOT / "deploy" / "argocd"
RUNS = sorted((ARGOCD / "runs").glob("*.yaml"))
FILES = [ARGOCD / "application.yaml", ARGOCD / "applicationset.yaml"]
KINDS = ("batch_Job", "kubeflow.org_MPIJob", "kubeflow.org_PyTorchJob", "trainer.kubeflow.org_TrainJob")


def applications(folder: Path) -> list[helm.Values]:
    """Return the Applications that the ApplicationSet makes of the files, by Go's templates with sprig."""
    template = yaml.safe_load((ARGOCD / "applicationset.yaml").read_text())["spec"]["template"]
    (folder / "templates").mkdir()
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: filled\nversion: 0.1.0\n")
    (folder / "templates" / "one.yaml").write_text(f"{{{{ with .Values }}}}\n{yaml.safe_dump(template)}{{{{ end }}}}")
    found = []
    for path in RUNS:
        parameters = {"path": {"path": "deploy/argocd/runs", "filename": path.name}}
        text = helm.run("helm3", "template", "filled", folder, "-f", "-", stdin=yaml.safe_dump(parameters))
        one = yaml.safe_load(text)
        found.append({"apiVersion": "argoproj.io/v1alpha1", "kind": "Application"} | one)
    return found


def chart_source(application: helm.Values) -> tuple[str, Path]:
    """Return the release's name and the values file that an Application gives the chart."""
    chart, team = application["spec"]["sources"]
    assert (helm.ROOT / chart["path"]).resolve() == helm.CHART
    (values,) = chart["helm"]["valueFiles"]
    assert values.startswith(f"${team['ref']}/")
    return chart["helm"]["releaseName"], helm.ROOT / values.split("/", 1)[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_objects_match_the_schemas_of_their_controllers(path: Path):
    helm.validate(path.read_text())
    with pytest.raises(helm.HelmError, match="additional properties 'specc' not allowed"):
        helm.validate(path.read_text().replace("\nspec:", "\nspecc:", 1))


def test_every_file_in_the_folder_is_a_run_of_its_own_on_the_claims_of_the_application(tmp_path: Path):
    first, values = chart_source(yaml.safe_load((ARGOCD / "application.yaml").read_text()))
    text = helm.template(values, release=first)
    helm.validate(text)
    made = {one["metadata"]["name"] for one in helm.documents(text) if one["kind"] == "PersistentVolumeClaim"}
    (files,) = yaml.safe_load((ARGOCD / "applicationset.yaml").read_text())["spec"]["generators"][0]["git"]["files"]
    assert sorted(helm.ROOT.glob(files["path"])) == RUNS
    directories = set()
    for application, path in zip(applications(tmp_path), RUNS, strict=True):
        helm.validate(yaml.safe_dump(application))
        assert application["metadata"]["name"] == f"run-{path.stem}"
        release, values = chart_source(application)
        assert (release, values) == (path.stem, path)
        text = str(helm.documents(helm.rendered(values, release)))
        assert set(re.findall(r"'claimName': '([^']+)'", text)) == made
        assert "ttlSecondsAfterFinished" not in text
        directories |= set(re.findall(r"/results/runs/([\w-]+)", text))
    assert len(directories) == len(RUNS) > 1


def test_the_health_checks_are_those_of_the_script_under_the_keys_that_argocd_reads():
    script = helm.ROOT / "hack" / "schemas" / "health_checks.py"
    subprocess.run([sys.executable, script, "--check"], check=True)
    patch = (ARGOCD / "health-checks.yaml").read_text()
    helm.validate(patch)
    written = yaml.safe_load(patch)
    assert written["metadata"]["name"] == "argocd-cm"
    lua = (ARGOCD / "health.lua").read_text()
    assert written["data"] == {f"resource.customizations.health.{kind}": lua for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_script_and_its_tests_in_argocds_layout(kind: str):
    folder = ARGOCD / "resource_customizations" / kind.replace("_", "/")
    assert (folder / "health.lua").read_text() == (ARGOCD / "health.lua").read_text()
    cases = yaml.safe_load((folder / "health_test.yaml").read_text())["tests"]
    states = {case["inputPath"]: case["healthStatus"]["status"] for case in cases}
    assert set(states) == {f"testdata/{path.name}" for path in (folder / "testdata").glob("*.yaml")}
    assert set(states.values()) == {"Healthy", "Degraded", "Suspended", "Progressing"}
