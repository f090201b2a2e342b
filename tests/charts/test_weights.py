"""Pretrained weights: the dataset's Job fetches what the trainers look for, once, and trainers wait for it."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.charts.helm import HelmError, Values, documents, template
from tests.charts.pods import LocalPod
from tests.fakes import files
from trainyard import config
from trainyard.config import Config
from trainyard.core.storage import storage
from trainyard.models import weights

KINDS = ("pytorchjob", "mpijob", "trainjob")
ADDRESS = "https://data.example.com/net-0123abcd.pth"


def values(operator: str = "pytorchjob", source: dict[str, str] | None = None, **training: Any) -> Values:
    return {
        "global": {
            "image": {"registry": "r.example.com/team", "tag": "0.1.0"},
            "dataset": {"name": "pets"},
            "training": {"nodes": 2, "gpusPerNode": 1, "operator": operator, "recipe": "resnet50-a3", **training},
        },
        "dataset": {"source": source or {"url": "https://data.example.com/pets.zip"}},
    }


def objects(given: Values) -> list[dict[str, Any]]:
    return documents(template(given))


def of(found: list[dict[str, Any]], kind: str, part: str) -> dict[str, Any]:
    [one] = [o for o in found if o["kind"] == kind and o["metadata"]["labels"]["app.kubernetes.io/name"] == part]
    return one


def settings_of(found: list[dict[str, Any]], part: str, key: str) -> Config:
    """Settings in a part's ConfigMap; a TrainJob's runtime has one with the same of them."""
    mine = [one for one in found if one["kind"] == "ConfigMap" and key in one["data"]]
    assert {one["metadata"]["labels"]["app.kubernetes.io/name"] for one in mine} == {part}
    return config.build(json.loads(mine[0]["data"][key]))


@pytest.mark.parametrize("operator", KINDS)
@pytest.mark.parametrize(
    "training",
    [
        {"recipe": "finetune"}, {"recipe": "finetune-vit"}, {"config": {"model": {"pretrained": "IMAGENET1K_V2"}}},
        {"config": {"model": {"pretrained": ADDRESS, "weights_dir": "/data/shared"}}},
    ],
    ids=str,
)  # fmt: skip
def test_the_job_fetches_to_where_the_trainers_look(operator: str, training: dict[str, Any]) -> None:
    found = objects(values(operator, **training))
    fetched, run = settings_of(found, "dataset", "weights-0.json"), settings_of(found, operator, "config.json")
    folder = weights.folder_of(run.model, run.data)
    assert weights.is_fetched(run.model.pretrained)
    assert weights.folder_of(fetched.model, fetched.data) == folder
    assert str(folder).startswith(run.model.weights_dir)
    assert run.model.weights_dir == ("/data/shared" if "weights_dir" in str(training) else "/data/weights")
    pod = of(found, "Job", "dataset")["spec"]["template"]["spec"]
    first, main = pod["initContainers"][-1], pod["containers"][0]
    assert first["command"][2:6] == ["trainers.prepare", "weights", "--config", "/etc/trainyard/weights-0.json"]
    assert main["command"][2:4] == ["trainers.prepare", "build"]
    for key in ("image", "resources", "securityContext", "volumeMounts", "env"):
        assert first[key] == main[key], key
    assert template(values(operator, **training)).count("- --weights") >= 1


@pytest.mark.parametrize("pretrained", ["", "/data/mine.pth", "runs/a/published"])
def test_nothing_is_fetched_for_a_path(pretrained: str) -> None:
    text = template(values(config={"model": {"pretrained": pretrained}}))
    assert "weights-0" not in text
    assert "--weights" not in text
    assert template(values(recipe="finetune", config={"model": {"pretrained": pretrained}})).count("weights-0") == 0


def test_without_a_source_the_job_only_fetches_weights() -> None:
    found = objects(values(source={"kind": "none"}, recipe="finetune"))
    pod = of(found, "Job", "dataset")["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][3] == "weights"
    assert list(of(found, "ConfigMap", "dataset")["data"]) == ["weights-0.json"]
    for given, said in (
        (values(source={"kind": "none"}), "there are no pretrained weights to fetch"),
        (values(source={"kind": "none", "path": "/data/a.zip"}, recipe="finetune"), "dataset.source.path is set"),
    ):
        with pytest.raises(HelmError, match=said):
            template(given)


ARCHIVE = {"url": "https://data.example.com/pets.zip"}
COMPETITION = {"competition": "some"}
BUCKET = {"url": "s3://bucket/pets.zip"}


@pytest.mark.parametrize(
    ("source", "pretrained", "named", "wanted"),
    [
        (ARCHIVE, None, {"http": "files"}, ("http", "http")),  # finetune's are timm's, of a public server or a mirror
        (ARCHIVE, ADDRESS, {"http": "files"}, ("http", "http")),
        (ARCHIVE, "s3://bucket/net.pth", {"http": "files"}, ("http", "objectstore")),
        (COMPETITION, ADDRESS, {"http": "files"}, ("kaggle", "http")),
        (COMPETITION, None, {}, ("kaggle", "")),
        (BUCKET, "IMAGENET1K_V2", {}, ("objectstore", "")),
        (BUCKET, ADDRESS, {"http": "files"}, ("objectstore", "http")),
        ({"kind": "none"}, "gs://bucket/net.pth", {"http": "files"}, ("objectstore", "objectstore")),
        ({"kind": "none"}, None, {"http": "files"}, ("http", "http")),
    ],
)
def test_each_container_has_the_secret_of_what_it_reads(
    source: dict[str, str], pretrained: str | None, named: dict[str, str], wanted: tuple[str, str]
) -> None:
    model = {} if pretrained is None else {"config": {"model": {"pretrained": pretrained}}}
    given = values(source=source, recipe="finetune", **model)
    given["global"]["secrets"] = {which: {"existingSecret": name} for which, name in named.items()}
    pod = of(objects(given), "Job", "dataset")["spec"]["template"]["spec"]
    for container, secret in zip((pod["containers"][0], pod["initContainers"][-1]), wanted, strict=True):
        mounts = [one["name"] for one in container["volumeMounts"] if one["name"].startswith("secret-")]
        assert mounts == ([f"secret-{secret}"] if secret else [])
        assert ("NETRC" in str(container["env"])) == (secret == "http")
    volumes = [one["name"] for one in pod["volumes"] if one["name"].startswith("secret-")]
    assert sorted(volumes) == sorted({f"secret-{secret}" for secret in wanted if secret})


def test_signed_weights_are_fetched_beside_a_signed_dataset(tmp_path: Path) -> None:
    """By the rendered pod's own command, settings and Secret, from a server that answers signed requests alone."""
    (served := tmp_path / "served").mkdir()
    torch.save({"weight": torch.zeros(3)}, served / "new.pth")
    name = f"net-{storage.hash_file(served / 'new.pth')[:8]}.pth"
    (served / "new.pth").rename(served / name)
    with files.running(served) as server:
        server.fault = lambda number, handler: not handler.path.endswith("sig=net") and handler.refuse(403)
        given = values(
            source={"url": f"{server.url}/pets.zip"}, recipe="finetune",
            config={"model": {"pretrained": f"{server.url}/{name}"}},
        )  # fmt: skip
        given["global"]["secrets"] = {"http": {"existingSecret": "signed"}}
        found = objects(given)
        secret = {"url": f"{server.url}/pets.zip?sig=pets", "weights-url": f"{server.url}/{name}?sig=net"}
        spec = of(found, "Job", "dataset")["spec"]["template"]["spec"]
        pod = LocalPod(tmp_path / "pod", spec, found, {"signed": secret}, container="weights-0")
        code, said = pod.run("--retry", "0")
    assert code == 0, said
    assert "sig=" not in said
    assert [path.name for path in pod.mounted("/data/weights").glob("net-*/model.pth")] == ["model.pth"]


def test_the_key_for_signed_weights_is_made_from_values() -> None:
    given = values(recipe="finetune")
    given["secrets"] = {"enabled": True, "http": {"weightsUrl": "https://data.example.com/net.pth?sig=1"}}
    secret = of(objects(given), "Secret", "secrets")
    assert {key: b64decode(value) for key, value in secret["data"].items()} == {
        "weights-url": b"https://data.example.com/net.pth?sig=1"
    }


def test_only_a_change_of_the_weights_is_another_job() -> None:
    def name(**training: Any) -> str:
        return str(of(objects(values(**training)), "Job", "dataset")["metadata"]["name"])

    first = name(recipe="finetune")
    assert name(recipe="finetune", config={"optimizer": {"lr": 0.5}}, nodes=4) == first
    assert name(recipe="finetune", config={"model": {"pretrained": "IMAGENET1K_V2"}}) != first
    assert name() != first


def test_the_chart_knows_the_recipes_that_start_from_weights() -> None:
    for recipe in config.recipe_names():
        names = config.read_recipe(recipe).get("model", {}).get("pretrained", "")
        assert ("weights-0.json" in template(values(recipe=recipe))) == bool(names), recipe
