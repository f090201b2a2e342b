"""Pretrained weights: the dataset's Job fetches what the trainers look for, once, and trainers wait for it."""

import json
from typing import Any

import pytest

from tests.charts.helm import HelmError, Values, documents, template
from trainers import config
from trainers.config import Config
from trainers.models import weights

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
    assert weights.is_fetched(run)
    assert weights.folder_of(fetched) == weights.folder_of(run)
    assert str(weights.folder_of(run)).startswith(run.model.weights_dir)
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
