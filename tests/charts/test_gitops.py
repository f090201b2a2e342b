"""The files of docs/argocd.md and docs/kueue.md: valid against the real CRDs, and what they start renders.

No Argo CD and no Kueue runs here: what their controllers would do with the files is read, not tried.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from . import helm

ARGOCD, KUEUE = helm.ROOT / "examples" / "argocd", helm.ROOT / "examples" / "kueue"
RUNS = sorted((ARGOCD / "runs").glob("*.yaml"))
QUEUED = [path for path in sorted(KUEUE.glob("*.yaml")) if path.name != "queues.yaml"]
UNITS = {"Gi": 1 << 30, "Mi": 1 << 20, "m": 0.001, "": 1}


def validate(text: str) -> None:
    """Hold manifests against the strict schemas, Argo CD's and Kueue's among them."""
    location = str(helm.ROOT / "build/schemas/{{ .ResourceKind }}{{ .KindSuffix }}.json")
    helm.run("kubeconform", "-strict", "-schema-location", location, stdin=text)


def rendered(values: Path, release: str) -> list[helm.Values]:
    """Return the objects that values become, the same on both Helms and valid."""
    texts = [helm.template(yaml.safe_load(values.read_text()), program, release) for program in helm.HELMS]
    objects = [helm.documents(text) for text in texts]
    assert objects[0] == objects[1]
    for text in texts:
        validate(text)
    return objects[0]


def applications(folder: Path) -> list[helm.Values]:
    """Return the Applications that the ApplicationSet makes of the files, by Go's templates with sprig."""
    template = yaml.safe_load((ARGOCD / "applicationset.yaml").read_text())["spec"]["template"]
    (folder / "templates").mkdir()
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: filled\nversion: 0.1.0\n")
    (folder / "templates" / "one.yaml").write_text(f"{{{{ with .Values }}}}\n{yaml.safe_dump(template)}{{{{ end }}}}")
    found = []
    for path in RUNS:
        parameters = {"path": {"path": "examples/argocd/runs", "filename": path.name}}
        text = helm.run("helm3", "template", "filled", folder, "-f", "-", stdin=yaml.safe_dump(parameters))
        (one,) = helm.documents(text)
        found.append({"apiVersion": "argoproj.io/v1alpha1", "kind": "Application"} | one)
    return found


def chart_source(application: helm.Values) -> tuple[str, Path]:
    """Return the release's name and the values file that an Application gives the chart."""
    chart, team = application["spec"]["sources"]
    assert (helm.ROOT / chart["path"]).resolve() == helm.CHART
    (values,) = chart["helm"]["valueFiles"]
    assert values.startswith(f"${team['ref']}/")
    return chart["helm"]["releaseName"], helm.ROOT / values.split("/", 1)[1]


@pytest.mark.parametrize("path", [*sorted(ARGOCD.glob("*.yaml")), KUEUE / "queues.yaml"], ids=lambda path: path.stem)
def test_the_objects_match_the_schemas_of_their_controllers(path: Path):
    validate(path.read_text())
    with pytest.raises(helm.HelmError, match="additional properties 'specc' not allowed"):
        validate(path.read_text().replace("\nspec:", "\nspecc:", 1))


def test_every_file_in_the_folder_is_a_run_of_its_own_on_the_claims_of_the_application(tmp_path: Path):
    first, values = chart_source(yaml.safe_load((ARGOCD / "application.yaml").read_text()))
    made = {one["metadata"]["name"] for one in rendered(values, first) if one["kind"] == "PersistentVolumeClaim"}
    (files,) = yaml.safe_load((ARGOCD / "applicationset.yaml").read_text())["spec"]["generators"][0]["git"]["files"]
    assert sorted(helm.ROOT.glob(files["path"])) == RUNS
    directories = set()
    for application, path in zip(applications(tmp_path), RUNS, strict=True):
        validate(yaml.safe_dump(application))
        assert application["metadata"]["name"] == f"run-{path.stem}"
        release, values = chart_source(application)
        assert (release, values) == (path.stem, path)
        objects = rendered(values, release)
        text = str(objects)
        assert set(re.findall(r"'claimName': '([^']+)'", text)) == made
        assert "ttlSecondsAfterFinished" not in text
        directories |= set(re.findall(r"/results/runs/([\w-]+)", text))
    assert len(directories) == len(RUNS) > 1


def number(quantity: Any) -> float:
    """Return a quantity as a number."""
    digits, unit = re.fullmatch(r"([0-9.]+)(\D*)", str(quantity)).groups()
    return float(digits) * UNITS[unit]


def asked(job: helm.Values) -> dict[str, float]:
    """Return what the pods of a job ask for together, as Kueue counts: init containers or the others."""
    total: dict[str, float] = {}
    for replica in next(value for key, value in job["spec"].items() if key.endswith("ReplicaSpecs")).values():
        pod = replica["template"]["spec"]
        containers, first = (
            [{**one["resources"].get("limits", {}), **one["resources"].get("requests", {})} for one in pod.get(key, [])]
            for key in ("containers", "initContainers")
        )
        for name in {key for one in (*containers, *first) for key in one}:
            most = max(
                sum(number(one.get(name, 0)) for one in many) for many in (containers, *([one] for one in first))
            )
            total[name] = total.get(name, 0) + most * replica["replicas"]
    return total


@pytest.mark.parametrize("path", QUEUED, ids=lambda path: path.stem)
def test_a_queued_run_names_a_queue_that_could_admit_it(path: Path):
    objects = {one["kind"]: one for one in helm.documents((KUEUE / "queues.yaml").read_text())}
    (job,) = [one for one in rendered(path, "run") if one["kind"] in ("PyTorchJob", "MPIJob")]
    labels = job["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == objects["LocalQueue"]["metadata"]["name"]
    assert (
        labels.get("kueue.x-k8s.io/priority-class", "deadline") == objects["WorkloadPriorityClass"]["metadata"]["name"]
    )
    assert objects["LocalQueue"]["spec"]["clusterQueue"] == objects["ClusterQueue"]["metadata"]["name"]
    assert "suspend" not in job["spec"]["runPolicy"], "Kueue's webhook sets it"
    (group,) = objects["ClusterQueue"]["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == objects["ResourceFlavor"]["metadata"]["name"]
    quota = {one["name"]: number(one["nominalQuota"]) for one in flavor["resources"]}
    assert quota.keys() == set(group["coveredResources"])
    wanted = asked(job)
    assert wanted.keys() <= quota.keys()
    assert all(wanted[name] <= quota[name] for name in wanted), (wanted, quota)


def test_both_runs_together_are_more_than_the_quota():
    """Else the priority of the one would show nothing."""
    objects = {one["kind"]: one for one in helm.documents((KUEUE / "queues.yaml").read_text())}
    resources = objects["ClusterQueue"]["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    quota = {one["name"]: number(one["nominalQuota"]) for one in resources}
    jobs = [one for path in QUEUED for one in rendered(path, "run") if one["kind"] in ("PyTorchJob", "MPIJob")]
    assert sum(asked(job)["nvidia.com/gpu"] for job in jobs) > quota["nvidia.com/gpu"]
