"""docs/horovod.md: one key moves its values from Horovod to DDP, and all that the run is stays; its settings exist."""

import json
import re

import pytest

from trainyard.config import Config

from . import helm

TEXT = (helm.ROOT / "docs" / "horovod.md").read_text()
(VALUES,) = [helm.yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.S)]
KINDS = {"mpijob": "MPIJob", "pytorchjob": "PyTorchJob", "trainjob": "TrainJob"}
STRATEGY = helm.at("global.training.config.strategy", "horovod")


def moved(operator: str, *more: helm.Values) -> list[helm.Values]:
    """Return the objects of the page's values with another operator."""
    return helm.documents(helm.template(helm.merged(VALUES, helm.at("global.training.operator", operator), *more)))


def settings(found: list[helm.Values]) -> helm.Values:
    """Return what the trainers are told."""
    (job,) = [one["metadata"]["name"] for one in found if one["kind"] in KINDS.values()]
    (told,) = [one["data"]["config.json"] for one in found if one["metadata"]["name"].startswith(f"{job}-run")]
    whole: helm.Values = json.loads(told)
    return whole


def test_the_pages_values_train_with_horovod() -> None:
    (job,) = [one for one in moved("mpijob") if one["kind"] == "MPIJob"]
    assert VALUES["global"]["training"]["operator"] == "mpijob"
    assert "trainyard-horovod" in json.dumps(job)


@pytest.mark.parametrize("operator", ["pytorchjob", "trainjob"])
def test_one_key_keeps_the_run_its_settings_its_claims_and_its_size(operator: str) -> None:
    before, after = moved("mpijob"), moved(operator)
    assert [one["kind"] for one in after if one["kind"] in KINDS.values()] == [KINDS[operator]]
    assert settings(after) == settings(before)
    assert settings(after)["run"]["dir"] == "/results/runs/demo"
    text = json.dumps(after)
    assert "trainyard-pytorch:" in text
    assert "trainyard-horovod" not in text
    assert "ssh" not in text
    for found in (before, after):
        claims = set(re.findall(r'"claimName": "([^"]+)"', json.dumps(found)))
        assert claims == {"imagenet", "results"}


def test_a_trainjob_keeps_horovod_where_it_is_named() -> None:
    assert "trainyard-horovod" in json.dumps(moved("trainjob", STRATEGY))


def keys(section: str) -> set[str]:
    found: set[str] = set(Config.model_fields[section].annotation.model_fields)  # type: ignore[union-attr]
    return found


def test_every_setting_of_horovod_has_its_line_and_those_that_take_its_place_exist() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line.startswith("| `")]
    first = " ".join(row[0] for row in rows)
    assert {f"horovod.{key}" for key in keys("horovod")} <= set(re.findall(r"horovod\.\w+", first))
    named = re.findall(r"`(comm|ddp|batch|model)\.(\w+)", TEXT)
    assert len(named) > 5
    assert [one for one in named if one[1] not in keys(one[0])] == []
    for key in re.findall(r"`((?:mpijob|trainjob|pytorchjob)\.\w+)", TEXT):
        assert helm.is_key(key), key
