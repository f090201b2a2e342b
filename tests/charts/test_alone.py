"""Each part of the chart is a chart of its own: from a checkout or a package it renders what the umbrella would."""

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from . import helm

PARTS = helm.CHART / "charts"
each = pytest.mark.parametrize("part", helm.SUBCHARTS)
PACKAGE = "trainyard-0.1.0.tgz"
# Of the umbrella, with the values of one part alone
OFF = {"storage": {"enabled": False}, "dataset": {"enabled": False}, "pytorchjob": {"enabled": False}}
CLAIMS = {"data": {"existingClaim": "demo-data"}, "results": {"existingClaim": "demo-results"}}


def own(part: str) -> helm.Values:
    """The values with which a part renders alone."""
    values: helm.Values = helm.yaml.safe_load((PARTS / part / "ci" / "alone-values.yaml").read_text())
    return helm.merged(values, {"wandb": {"apiKey": "not-a-key"}} if part == "secrets" else {})


def alone(part: str, chart: Path, program: str = "") -> list[str]:
    """The objects that a part renders by itself, as texts without the names of their templates."""
    if program:
        command = ("template", "demo", chart, "--namespace", "vision", "-f", "-")
        text = helm.run(program, *command, stdin=helm.yaml.safe_dump(own(part)))
    else:
        text = helm.render(chart, own(part))
    helm.validate(text)
    return objects(text, "")


def objects(text: str, folder: str) -> list[str]:
    """Split what is printed, for one folder's templates, and drop blank lines: the Helms differ in them."""
    found = re.findall(rf"^# Source: \w+/{folder}templates/\S+\n(.*?)(?=^---\n# Source|\Z)", text, re.M | re.S)
    return ["\n".join(line for line in one.splitlines() if line.strip()) for one in found]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the chart's package and those of its parts."""
    folder = tmp_path_factory.mktemp("packages")
    helm.run("helm3", "package", helm.CHART, *(PARTS / part for part in helm.SUBCHARTS), "-d", folder)
    return folder


@pytest.mark.parametrize(("part", "program"), [*((part, "") for part in helm.SUBCHARTS), ("mpijob", "helm4")])
def test_a_part_renders_alone_as_it_does_in_the_umbrella(part: str, program: str):
    values = own(part)
    shared = values.pop("global")
    if part != "storage":
        shared = helm.merged(shared, {"storage": CLAIMS})
    within = helm.merged(OFF, {"global": shared, part: values | {"enabled": True}})
    found = alone(part, PARTS / part, program)
    assert found
    assert found == objects(helm.template(within, program), f"charts/{part}/")


@each
def test_a_package_of_a_part_has_all_that_it_needs(part: str, packages: Path, tmp_path: Path):
    shutil.unpack_archive(packages / f"{part}-0.1.0.tgz", tmp_path)
    assert alone(part, tmp_path / part) == alone(part, PARTS / part)


@each
def test_a_part_alone_refuses_a_misspelt_key_of_its_own(part: str):
    with pytest.raises(helm.HelmError, match="additional properties 'enabledd' not allowed"):
        helm.render(PARTS / part, own(part) | {"enabledd": True})


@each
def test_a_part_that_is_off_renders_nothing(part: str):
    values = helm.merged(helm.everything(), {part: {"enabled": False}})
    if part == "storage":
        values = helm.merged(values, {"global": {"storage": CLAIMS}})
    text = helm.template(values)
    assert f"charts/{part}/" not in text
    assert helm.documents(text)


def test_the_umbrella_neither_packs_nor_says_anything_of_what_its_parts_need_alone(packages: Path):
    with tarfile.open(packages / PACKAGE) as packed:
        names = packed.getnames()
    assert "trainyard/charts/storage/templates/claims.yaml" in names
    left_out = r"charts/\w+/(charts|ci|tests|values\.schema\.json)|common/values"
    assert not [name for name in names if re.search(left_out, name)]
    for program in helm.HELMS:
        command = [helm.BIN / program, "template", "demo", helm.CHART, "-f", helm.CI[0]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


OTHERS = ("web", "queue")  # charts of others, which read their parent's `global`
TEMPLATE = """apiVersion: v1
kind: ConfigMap
metadata: {name: %s}
data: {registry: {{ .Values.global.imageRegistry | default "none" | quote }}}
"""


def within_another(folder: Path, alias: str, values: helm.Values, program: str, package: Path | None) -> str:
    """Render a chart of three dependencies: this one, under a name and with a condition, and two others."""
    for name in OTHERS:
        (folder / "charts" / name / "templates").mkdir(parents=True)
        (folder / "charts" / name / "templates" / "settings.yaml").write_text(TEMPLATE % name)
        own_chart = {"apiVersion": "v2", "name": name, "version": "0.1.0"}
        (folder / "charts" / name / "Chart.yaml").write_text(helm.yaml.safe_dump(own_chart))
    if package:
        shutil.copy(package, folder / "charts")
    else:
        shutil.copytree(helm.CHART, folder / "charts" / "trainyard", symlinks=True)
    dependency = {"name": "trainyard", "version": "0.1.0", "condition": f"{alias}.enabled"}
    dependency |= {"alias": alias} if alias != "trainyard" else {}
    dependencies = [dependency, *({"name": name, "version": "0.1.0"} for name in OTHERS)]
    chart = {"apiVersion": "v2", "name": "parent", "version": "0.1.0", "dependencies": dependencies}
    (folder / "Chart.yaml").write_text(helm.yaml.safe_dump(chart))
    shared = {"global": helm.everything()["global"]}
    below = {alias: {"enabled": True, "dataset": {"enabled": False}}}
    text = helm.yaml.safe_dump(helm.merged(shared, below, values))
    return helm.run(program, "template", "demo", folder, "--namespace", "vision", "-f", "-", stdin=text)


@pytest.mark.parametrize(("alias", "program"), [("trainyard", "helm3"), ("second", "helm4")])
def test_the_chart_is_a_dependency_beside_others(alias: str, program: str, packages: Path, tmp_path: Path):
    """Its condition's key, and what its parent has under `global` for other charts, are not the chart's own."""
    foreign = {
        "imageRegistry": "registry.example.com",
        "storageClass": "fast",
        "security": {"allowInsecureImages": True},
    }
    text = within_another(tmp_path, alias, {"global": foreign}, program, packages / PACKAGE)
    assert helm.only(text, "PyTorchJob")["spec"]["nprocPerNode"] == "2"
    found = {one["metadata"]["name"]: one.get("data") for one in helm.documents(text)}
    assert [found[name] for name in OTHERS] == [{"registry": "registry.example.com"}] * 2


@pytest.mark.parametrize("program", helm.HELMS)
def test_a_checkout_is_a_dependency(program: str, tmp_path: Path):
    """In a folder the parts bring the library's values, which no package has; and a parent's map may share a name."""
    foreign = {"image": {"repository": "nginx"}, "metrics": {"serviceMonitor": {"enabled": True}}}
    text = within_another(tmp_path, "second", {"global": foreign}, program, None)
    assert helm.only(text, "PyTorchJob")["spec"]["nprocPerNode"] == "2"


def test_misspelt_keys_of_a_dependency_are_named(packages: Path, tmp_path: Path):
    meant = {"trainin": "training", "training.nodez": "nodes", "image.registri": "registry"}
    values = helm.merged(*(helm.at(f"global.{key}", {}) for key in meant))
    with pytest.raises(helm.HelmError) as caught:
        within_another(tmp_path, "trainyard", values, "helm3", packages / PACKAGE)
    for key, right in meant.items():
        assert f"global.{key} is not a key of this chart: did you mean {right}?" in str(caught.value)


def test_a_part_alone_creates_no_service_account():
    values = helm.merged(own("dataset"), helm.at("serviceAccount.create", True))
    with pytest.raises(helm.HelmError, match="a part used alone names one that exists"):
        helm.render(PARTS / "dataset", values)
