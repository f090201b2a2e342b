"""`trainyard mirror`: every image that the chart renders, and every address that its pods fetch from, is listed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests import documents
from tests.charts import helm
from trainyard.cluster import mirror

EXAMPLES = sorted((helm.ROOT / "examples").rglob("*.yaml"))
RELEASES = [path for path in EXAMPLES if re.search(r"^global:", path.read_text(), re.M)]
IMAGE = re.compile(r'^\s*(?:- )?image: *"?([^"\s]+)"?$', re.M)
OPERATOR = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: mpi-operator}
spec: {template: {spec: {containers: [{name: mpi-operator, image: "mpioperator/mpi-operator:0.8.2"}]}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: mpijobs.kubeflow.org}
spec: {versions: [{schema: {containers: {items: {properties: {image: {type: string}}}}, volumes: {type: array}}}]}
"""


@pytest.fixture
def listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command, in this process; what it prints."""
    monkeypatch.setenv("TRAINYARD_CHART", str(helm.CHART))

    def run(*words: str | Path, code: int = 0) -> str:
        assert mirror.main([str(word) for word in words]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run


def values(tmp_path: Path, operator: str = "pytorchjob", **config: Any) -> Path:
    shared = {
        "image": {"registry": "r.example.com/team", "tag": "0.1.0"},
        "training": {"nodes": 2, "gpusPerNode": 1, "operator": operator, "config": config},
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"global": shared, "dataset": {"source": {"dataset": "owner/pets"}}}))
    return path


@pytest.mark.parametrize("example", RELEASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_image_that_an_example_renders_is_listed(example: Path) -> None:
    tagged = re.search(r"^[^#\n]*\btag: \w", example.read_text(), re.M)
    values = helm.merged(helm.read_values(example), {} if tagged else helm.IMAGED)
    text = helm.template(values, release="run" if example.name == helm.NAMES_RELEASE else "demo")
    found = [name for kind, name in mirror.merge(list(mirror.of_objects(helm.documents(text)))) if kind == "image"]
    rendered = set(IMAGE.findall(text))
    assert rendered
    assert set(found) - rendered <= {mirror.INIT_IMAGE}
    assert rendered <= set(found)
    assert len(found) == len(set(found))


def test_what_pods_fetch_is_listed_with_its_reason(tmp_path: Path, listed: Any) -> None:
    run = values(tmp_path, mlflow={"uri": "https://mlflow.example.com"}, model={"pretrained": "IMAGENET1K_V2"})
    found = {(one["kind"], one["name"]): one["for"] for one in json.loads(listed("-f", run, "--json"))}
    assert found[("address", "https://www.kaggle.com")] == ["the dataset's source, dataset owner/pets"]
    assert found[("address", "https://mlflow.example.com")] == ["MLflow"]
    (weights,) = found[("address", "https://download.pytorch.org")]
    assert weights.startswith("pretrained weights IMAGENET1K_V2 of ")
    assert ("address", "https://api.wandb.ai") in found
    (added,) = found[("image", mirror.INIT_IMAGE)]
    assert "added by training-operator" in added


@pytest.mark.parametrize(
    ("config", "address"),
    [
        ({"model": {"name": "timm:resnet18", "pretrained": "timm"}}, "https://huggingface.co"),
        ({"model": {"pretrained": "https://w.example.com/a.pth"}}, "https://w.example.com/a.pth"),
        ({"model": {"pretrained": "DEFAULT", "weights_mirror": "https://in.example.com"}}, "https://in.example.com"),
        ({"recipe": "finetune"}, "https://download.pytorch.org"),
    ],
    ids=str,
)
def test_pretrained_weights_are_found_in_settings_and_recipes(config: dict[str, Any], address: str) -> None:
    settings = {"data": {"dir": "/data"}, "wandb": {"mode": "off"}, "recipe": "resnet50-a3", **config}
    assert [one.name for one in mirror.of_run(settings)] == [address]


def test_a_proxys_password_is_not_listed(tmp_path: Path, listed: Any) -> None:
    proxy = ("--set", "global.training.env[0].name=HTTPS_PROXY,global.training.env[0].value=http://me:word@proxy:3128")
    found = listed("-f", values(tmp_path), *proxy)
    assert "http://proxy:3128" in found
    assert "word" not in found


def test_a_closed_run_names_no_address(tmp_path: Path, listed: Any) -> None:
    run = values(tmp_path, operator="trainjob", wandb={"mode": "offline"})
    words = ("--set", "dataset.source.dataset=null", "--set", "dataset.source.path=/data/pets")
    assert {line.split()[0] for line in listed("-f", run, *words).splitlines()} == {"image"}
    assert mirror.INIT_IMAGE not in listed("-f", run, *words), "a TrainJob's pods get no other container"


def test_an_operators_manifests_add_their_images(tmp_path: Path, listed: Any) -> None:
    (tmp_path / "operator.yaml").write_text(OPERATOR)
    run = values(tmp_path)
    assert "mpioperator/mpi-operator:0.8.2" in listed("-f", run, "--manifests", tmp_path / "operator.yaml", "--images")
    for text in ("- 1\n", "kind: [\n"):
        (tmp_path / "operator.yaml").write_text(text)
        said = listed("-f", run, "--manifests", tmp_path / "operator.yaml", code=2)
        assert "it holds no Kubernetes objects: name what kubectl applies" in said


def test_values_that_the_chart_refuses_are_told_in_its_words(tmp_path: Path, listed: Any) -> None:
    (tmp_path / "run.yaml").write_text("{}")
    assert "mirror: the chart refuses the values: Please set: global.image" in listed(
        "-f", tmp_path / "run.yaml", code=2
    )
    assert "there is no such file" in listed("-f", tmp_path / "none.yaml", code=2)
    assert f"--manifests {tmp_path}: it cannot be read" in listed(
        "-f", values(tmp_path), "--manifests", tmp_path, code=2
    )


def test_the_pages_own_commands_list_and_package(tmp_path: Path) -> None:
    for name in ("charts", "examples"):
        (tmp_path / name).symlink_to(helm.ROOT / name)
    done = documents.run("air-gapped.md", "mkdir -p mirror", cwd=tmp_path)
    image = "registry.example.com/team/trainyard-pytorch:0.1.0-0123456789ab"
    address = "https://archive.example.com/imagenet.tar"
    assert image in done.stdout
    assert address in done.stdout
    assert (tmp_path / "mirror" / "images.txt").read_text().splitlines() == [mirror.INIT_IMAGE, image]
    assert list((tmp_path / "mirror").glob("trainyard-*.tgz"))
    page = (helm.ROOT / "docs" / "air-gapped.md").read_text()
    assert all(one in page for one in (mirror.INIT_IMAGE, image, address)), "what the page shows is what is printed"
