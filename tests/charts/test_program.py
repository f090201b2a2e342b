"""`global.training.command`: a program of the user's in the chart's pods, with the gates and claims it asks for."""

import json
from typing import Any

import pytest

from . import helm

OPERATORS = ("pytorchjob", "mpijob", "trainjob", "trainjob with mpirun")
COMMAND = ["python", "/app/train.py", "--config", "run.json"]
SMALL: helm.Values = {
    "global": {
        "image": {"registry": "registry.example.com/team", "tag": "0.1.0-abc"},
        "training": {"nodes": 2, "processesPerNode": 2, "command": COMMAND},
    },
    "dataset": {"enabled": False},
}
DATASET = {"dataset": {"enabled": True, "source": {"url": "https://data.example.com/pictures.zip"}}}
each = pytest.mark.parametrize("operator", OPERATORS)


def values(operator: str, *more: helm.Values) -> helm.Values:
    """Return values of a program under an operator."""
    own = helm.at("global.training.operator", operator.partition(" ")[0])
    mpi = helm.at("global.training.config.strategy", "horovod") if " " in operator else {}
    return helm.merged(SMALL, own, mpi, *more)


def containers(node: Any) -> list[helm.Values]:
    """Return the containers of rendered objects that mount /results, those of all kinds of pods."""
    found: list[helm.Values] = []
    if isinstance(node, dict):
        found += [one for one in node.get("containers", []) + node.get("initContainers", []) if "volumeMounts" in one]
        node = list(node.values())
    for one in node if isinstance(node, list) else []:
        found += containers(one)
    return found


def paths(text: str) -> set[str]:
    return {mount["mountPath"] for one in containers(helm.documents(text)) for mount in one["volumeMounts"]}


@each
@pytest.mark.parametrize("more", [{}, DATASET], ids=("alone", "with a dataset"))
def test_what_is_rendered_is_valid_and_restricted(operator: str, more: helm.Values) -> None:
    text = helm.template(values(operator, more))
    helm.validate(text)
    helm.run("podsecurity", stdin=text)


@each
def test_the_command_ends_the_launchers_own_and_its_settings_are_not_the_trainers(operator: str) -> None:
    text = helm.template(values(operator))
    found = helm.documents(text)
    ours = [one["command"] for one in containers(found) if one["command"][-len(COMMAND) :] == COMMAND]
    assert ours
    assert {"mpi" in operator, "mpi" not in operator} == {
        ours[0][: -len(COMMAND)] == ["python", "-m", "trainers.launch", "--no-python"],
        ours[0][-len(COMMAND) - 4 : -len(COMMAND)] == ["-m", "trainers.mpi", "rank", "--"],
    }
    (settings, *_) = [one["data"]["config.json"] for one in found if "config.json" in one.get("data", {})]
    assert json.loads(settings) == {"run": {"dir": "/results/runs/demo"}}


@each
def test_without_a_dataset_no_pod_waits_for_one_and_nothing_has_a_data_claim(operator: str) -> None:
    text = helm.template(values(operator))
    assert "/data" not in paths(text)
    assert "demo-data" not in text
    assert "--data" not in text
    named = helm.template(values(operator, helm.at("global.storage.data.existingClaim", "sets")))
    assert "/data" in paths(named)
    assert "--data" not in named
    asked = helm.template(values(operator, DATASET))
    assert {"/data", "/results"} <= paths(asked)
    assert "--data" in asked
    assert "name: demo-data" in asked


def test_another_command_is_another_job_and_one_beside_trainers_of_ours_keeps_the_data_claim() -> None:
    names = [
        helm.only(helm.template(values("pytorchjob", more)), "PyTorchJob")["metadata"]["name"]
        for more in ({}, helm.at("global.training.command", ["true"]))
    ]
    assert names[0] != names[1]
    both = helm.merged(
        SMALL, helm.at("global.training.command", []), helm.at("pytorchjob", {"enabled": True}),
        helm.at("mpijob", {"enabled": True, "training": {"command": ["train"]}}),
    )  # fmt: skip
    text = helm.template(both)
    assert "name: demo-data" in text
    assert "trainers.ddp" in text
    assert "trainers.hvd" not in text


def test_a_program_runs_without_values_for_the_data_claim_where_claims_are_not_made() -> None:
    none = {"storage": {"enabled": False}}
    results = helm.at("global.storage.results.existingClaim", "out")
    assert 'claimName: "out"' in helm.template(values("pytorchjob", none, results))
    with pytest.raises(helm.HelmError, match=r"storage\.enabled is false: set global\.storage\.data\.existingClaim"):
        helm.template(values("pytorchjob", none, results, DATASET))
