"""Every values file of docs/dataset.md renders, and gives settings that the preparation takes."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.charts import helm
from trainyard.prepare.settings import ADDRESS_KEYS, DatasetSettings, parse

TEXT = (Path(__file__).parents[3] / "docs/dataset.md").read_text()
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.S)]


def kind_of(source):
    """The kind that an address says."""
    (key,) = source.keys() & {"url", "competition", "dataset", "path"}
    if key == "url":
        return "http" if source["url"].startswith("http") else "objectstore"
    return {"competition": "kaggle", "dataset": "kaggle-dataset", "path": "path"}[key]


@pytest.fixture(scope="module")
def rendered():
    """The settings that each example gives the preparation, or what was wrong with it."""
    image = {"registry": "registry.example.com/team", "tag": "0.1.0"}
    shared = {"image": image, "training": {"nodes": 2, "gpusPerNode": 8}}
    many = [{**values, "global": {**values["global"], **shared}} for values in EXAMPLES]
    return helm.render_all(many)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_example_renders_and_is_taken(rendered, number):
    assert "error" not in rendered[number], rendered[number].get("error")
    documents = [document for document in yaml.safe_load_all(rendered[number]["manifests"]) if document]
    texts = [d["data"]["prepare.json"] for d in documents if "prepare.json" in (d.get("data") or {})]
    config = parse(json.loads(texts[0]))
    values = EXAMPLES[number]
    assert config.out == Path("/data") / values["global"]["dataset"]["name"]
    assert config.source.kind == kind_of(values["dataset"]["source"])
    for secret in values["global"].get("secrets", {}).values():
        assert re.search(rf'(name|secretName): "?{secret["existingSecret"]}"?\n', rendered[number]["manifests"])


def test_there_is_an_example_of_each_source_and_layout():
    assert {kind_of(values["dataset"]["source"]) for values in EXAMPLES} == set(ADDRESS_KEYS)
    layouts = {values["dataset"].get("settings", {}).get("layout", "imagenet") for values in EXAMPLES}
    assert layouts == set(DatasetSettings.model_json_schema()["properties"]["layout"]["enum"])
