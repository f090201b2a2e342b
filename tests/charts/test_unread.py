"""What values set and nothing reads is named in the notes, and nothing else is."""

import re

import pytest
import yaml

from . import helm
from .test_values import CONTEXT, flat, other

TITLE = "Set in values, and read by nothing of this release:\n"
JOBS = ("pytorchjob", "mpijob", "trainjob")
# Keys of CONTEXT that an error names, that another value of the same key excludes, or that something else reads too
ELSEWHERE = re.compile(
    r"dataset\.source\.|.*\.extraVolumeMounts$|filebrowser\.auth\.|global\.training\.(rdma\.(env|by)|gpuResource)"
    r"|global\.secrets\.wandb\.|global\.metrics\.(kind|rules\.enabled)|secrets\.(mlflow|objectstore\.(accessKeyId|secretAccessKey))"
    r"|secrets\.external\.\w+\.remoteKey|(evaluate|mpijob\.launcher)\.serviceAccount\."
)
CONDITIONAL = [path for path in CONTEXT if not ELSEWHERE.match(path)]
PLAIN: helm.Values = {
    "global": {
        "image": {"registry": "registry.example.com/team", "tag": "0.1.0"},
        "training": {"nodes": 1, "processesPerNode": 2, "recipe": "demo"},
    },
    "pytorchjob": {"enabled": True},
    "filebrowser": {"enabled": True, "auth": {"password": "not-a-password"}},
    "secrets": {"enabled": True},
    "dataset": {"source": {"url": "https://data.example.com/pictures.zip"}},
    "networkPolicy": {"ingress": False},
}


def unread(values: helm.Values) -> dict[str, str]:
    """Return the keys that the notes name as read by nothing, each with the reason."""
    said = helm.run(
        "helm4",
        "install",
        "demo",
        helm.CHART,
        "-n",
        "vision",
        "--dry-run=client",
        "-f",
        "-",
        stdin=yaml.safe_dump(values),
    )
    lines = said.partition(TITLE)[2].partition("\n\n")[0].splitlines()
    return dict(line.strip().split(": ", 1) for line in lines)


@pytest.fixture(scope="module")
def named() -> dict[str, str]:
    """What is named when every key is set that something else must switch on, and nothing is switched on."""
    known = dict(flat(helm.defaults()))
    return unread(helm.merged(PLAIN, *(helm.at(path, other(path, known.get(path))) for path in CONDITIONAL)))


@pytest.mark.parametrize("path", CONDITIONAL)
def test_a_key_that_nothing_switches_on_is_named(path: str, named: dict[str, str]):
    assert named[path]


def test_nothing_else_is_named(named: dict[str, str]):
    assert set(named) - set(CONDITIONAL) == set()


def test_nothing_is_named_of_default_values():
    """Also of jobs that are off, so the defaults that the template compares with are the chart's."""
    values = helm.merged(helm.defaults(), PLAIN)
    del values["evaluate"]  # off, and of such a part Helm knows no defaults
    for job in JOBS:
        assert unread(helm.merged(values, helm.at("global.training.operator", job))) == {}


def test_what_a_part_that_is_off_has_is_named():
    off = {
        "mpijob": {"training": {"nodes": 3}, "launcher": {"wait": 5}, "image": {"repository": "own"}},
        "trainjob": {"runtime": {"wandb": True}},
        "evaluate": {"run": "first"},
        "filebrowser": {"enabled": False},
        "dataset": {"enabled": False},
        "secrets": {"enabled": False, "wandb": {"apiKey": "not-a-key"}},
        "networkPolicy": {
            "enabled": True,
            "filebrowser": {"ingress": [{"from": [{"podSelector": {}}]}]},
            "dataset": {"egress": []},
        },
    }
    assert unread(helm.merged(PLAIN, off)) == {
        "mpijob.training": "mpijob does not train",
        "mpijob.launcher": "mpijob does not train",
        "mpijob.image.repository": "mpijob does not train",
        "trainjob.runtime": "trainjob does not train",
        "evaluate.run": "evaluate.enabled is false",
        "filebrowser.auth": "filebrowser.enabled is false",
        "dataset.source": "dataset.enabled is false",
        "secrets.wandb": "secrets.enabled is false",
        "networkPolicy.filebrowser.ingress": "filebrowser.enabled is false",
        "networkPolicy.dataset.egress": "dataset.enabled is false",
    }


def test_rules_of_trainers_are_named_where_nothing_trains():
    rules = {"egress": [{"ports": [{"port": 443}]}], "ingress": [{"from": [{"podSelector": {}}]}]}
    values = helm.merged(PLAIN, helm.at("networkPolicy", {"enabled": True, "training": rules}))
    assert unread(values) == {}
    assert unread(helm.merged(values, helm.at("pytorchjob.enabled", False))) == {
        "networkPolicy.training.egress": "nothing trains",
        "networkPolicy.training.ingress": "nothing trains",
    }


GANG = {"enabled": True, "queue": "a", "priorityClass": "high", "timeoutSeconds": 30}
COSCHEDULING = "groups of coscheduling have none"


@pytest.mark.parametrize(
    ("scheduler", "job", "said"),
    [
        ("volcano", "pytorchjob", {"timeoutSeconds": "Volcano's groups have none"}),
        ("scheduler-plugins-scheduler", "pytorchjob", {"queue": COSCHEDULING, "priorityClass": COSCHEDULING}),
        ("", "pytorchjob", {}),
        ("", "trainjob", {"queue": COSCHEDULING, "priorityClass": "a TrainJob's gang has none"}),
    ],
    ids=["Volcano", "coscheduling", "either", "Trainer's own"],
)
def test_what_the_scheduler_of_a_gang_does_not_read_is_named(scheduler: str, job: str, said: dict[str, str]):
    values = helm.merged(
        PLAIN,
        helm.at("global.scheduling", {"schedulerName": scheduler, "gang": GANG}),
        helm.at("global.training.operator", job),
    )
    assert unread(values) == {f"global.scheduling.gang.{key}": why for key, why in said.items()}


def test_the_test_of_a_gpus_memory_is_named_where_the_preflight_has_none():
    values = helm.merged(
        PLAIN,
        helm.at(
            "global.training",
            {
                "gpusPerNode": 1, "processesPerNode": 0, "gpusBy": "annotations",
                "podAnnotations": {"gpu-fraction": "0.5"}, "gpuMemoryTest": 3,
            },
        ),
        helm.at("evaluate", {"enabled": True, "gpusBy": "node"}),
    )  # fmt: skip
    assert unread(values) == {
        "global.training.gpuMemoryTest": "the preflight has no GPU with gpusBy: annotations",
        "evaluate.gpusBy": "evaluate.gpus is 0",
    }


def test_what_a_choice_leaves_unread_is_named():
    trained = helm.at("global.training", {"operator": "trainjob", "config": {"model": {"pretrained": "timm"}}})
    values = helm.merged(
        PLAIN,
        trained,
        helm.at("mpijob.enabled", True),
        helm.at("global.scheduling.gang", {"enabled": True, "priorityClass": "high"}),
        helm.at("dataset", {"source": {"kind": "none", "url": "", "anonymous": True}, "settings": {"workers": 3}}),
    )
    assert unread(values) == {
        "mpijob.enabled": "global.training.operator names another job",
        "global.scheduling.gang.priorityClass": "a TrainJob's gang has none",
        "dataset.settings": "source.kind is none",
        "dataset.source.anonymous": "source.kind is none",
    }


def test_what_is_switched_on_is_not_named():
    on = helm.merged(
        helm.at("global.scheduling.gang", {"enabled": True, "queue": "a"}),
        helm.at("global.metrics", {"enabled": True, "kind": "podMonitor", "labels": {"a": "b"}, "interval": "15s"}),
        helm.at("pytorchjob", {"form": "elastic", "elastic": {"minNodes": 1}, "training": {"logs": {"size": "3Mi"}}}),
    )
    assert unread(helm.merged(PLAIN, on)) == {}
