"""docs/compatibility.md names the versions that are built and locked."""

import re
import tomllib
from pathlib import Path

import yaml

from trainyard.cluster.checks import operators

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    "Kubernetes": ("k8s.io/kubernetes",),
    "training-operator": ("github.com/kubeflow/training-operator",),
    "mpi-operator": ("github.com/kubeflow/mpi-operator",),
    "Kubeflow Trainer": ("github.com/kubeflow/trainer/v2",),
    "JobSet": ("sigs.k8s.io/jobset",),
    "Kueue": ("sigs.k8s.io/kueue",),
    "Argo CD": ("github.com/argoproj/argo-cd/v3",),
    "Helm": ("helm.sh/helm/v3", "helm.sh/helm/v4"),
}
PACKAGES = {"Kubeflow's Python SDK": ("kubeflow",), "torch, torchvision": ("torch", "torchvision")}


TESTED, BEFORE_A_RELEASE, EXPECTED, REFUSED = 1, 2, 3, 4  # columns


def of(start: str, column: int = TESTED) -> str:
    """Return a cell of the row whose name starts so."""
    lines = (ROOT / "docs" / "compatibility.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    (found,) = [row for row in cells if row[0].startswith(start)]
    return found[column]


def test_programs_have_the_versions_of_their_modules():
    modules = (ROOT / "hack" / "programs" / "go.mod").read_text()
    for start, names in MODULES.items():
        for name in names:
            version = re.search(rf"^\s*{re.escape(name)} v(\S+)", modules, re.M)
            assert version, name
            assert version[1] in of(start), f"{start}: {version[1]} is built"


def test_other_versions_are_those_that_can_be_put_on_the_cluster():
    for path in sorted((ROOT / "hack" / "versions").glob("*/*/go.mod")):
        (start,) = [start for start, (name, *_) in MODULES.items() if f"\ntool {name}" in path.read_text()]
        version = re.search(rf"^\s*{re.escape(MODULES[start][0])} v(\S+)", path.read_text(), re.M)
        assert version, path
        assert version[1] in of(start, BEFORE_A_RELEASE), f"{start}: {path} has {version[1]}"


def test_doctor_takes_the_same_versions_for_tested():
    """Those of hack/programs, and those that can be put on the cluster."""
    programs = (ROOT / "hack" / "programs" / "go.mod").read_text()
    others = [path.read_text() for path in sorted((ROOT / "hack" / "versions").glob("*/*/go.mod"))]
    for operator in (*operators.ALL, operators.KUEUE):
        (name, *_) = MODULES[operator.name]
        version = rf"^\s*{re.escape(name)} v((\d+\.\d+)\S*)"
        assert operator.tested == re.search(version, programs, re.M)[1]
        made = {re.search(version, text, re.M)[2] for text in others if f"\ntool {name}" in text}
        assert set(operator.others) == made, operator.name


def test_flux_has_the_versions_of_its_modules():
    modules = (ROOT / "hack" / "flux" / "go.mod").read_text()
    for name in ("helm-controller", "source-controller"):
        version = re.search(rf"^\s*github\.com/fluxcd/{name} v(\S+)", modules, re.M)
        assert version, name
        assert f"{name} {version[1]}" in of("Flux", BEFORE_A_RELEASE)


def test_packages_have_the_versions_of_the_lock_file():
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    versions = {package["name"]: package.get("version", "").partition("+")[0] for package in locked}
    for start, names in PACKAGES.items():
        for name in names:
            assert versions[name] in of(start), f"{name}: {versions[name]} is locked"


def test_bounds_are_those_of_chart_package_and_dockerfile():
    chart = yaml.safe_load((ROOT / "charts/trainyard/Chart.yaml").read_text())
    assert re.search(r">=(1\.\d+)", chart["kubeVersion"])[1] in of("Kubernetes", REFUSED)
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert python == ">=3.11,<3.13"
    assert of("Python of the trainers") == "3.11 and 3.12"
    image = re.search(r"pytorch:(\S+)-py3", (ROOT / "images/pytorch/Dockerfile").read_text())
    assert image[1] in of("NVIDIA's PyTorch image", EXPECTED)
