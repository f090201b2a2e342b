"""Each value does something, and none contradicts another in silence."""

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pytest

from . import helm

DIGEST = "sha256:" + "0123456789abcdef" * 4
RDMA = helm.at("global.training.rdma.resource", "rdma/ib")

PULL = helm.at("global.image.pullSecrets", ["demo-registry"])
EXTERNAL = helm.merged(
    PULL,
    helm.at(
        "secrets",
        {
            "wandb": {"apiKey": ""},
            "external": {
                "store": {"name": "vault"},
                **{
                    which: {"remoteKey": "team"}
                    for which in ("kaggle", "objectstore", "http", "wandb", "mlflow", "registry")
                },
            },
        },
    ),
)

OBJECTS = helm.at("dataset.source.url", "s3://bucket/pictures.zip")
KAGGLE = helm.at("dataset.source", {"url": "", "competition": "some"})

# Another valid value, where a changed word or a greater number is none.
OTHER: dict[str, Any] = {
    "global.image.pullPolicy": "Always",
    "global.labels": {"example.com/team": "vision"},
    "global.annotations": {"example.com/team": "vision"},
    "global.podAnnotations": {"example.com/team": "vision"},
    "global.image.pullSecrets": ["regcred"],
    "global.storage.data.accessModes": ["ReadWriteOnce"],
    "global.storage.results.accessModes": ["ReadWriteOnce"],
    "global.storage.data.annotations": {"example.com/team": "vision"},
    "global.storage.results.annotations": {"example.com/team": "vision"},
    "global.storage.supplementalGroups": [2000],
    "global.storage.fsGroupChangePolicy": "Always",
    "global.scheduling.nodeSelector": {"disk": "fast"},
    "global.scheduling.affinity": {"nodeAffinity": {}},
    "global.scheduling.tolerations": [{"operator": "Exists"}],
    "global.scheduling.topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "global.training.gpusPerNode": 2,
    "global.training.config": {"seed": 3},
    "global.training.resources.requests": {"cpu": 3},
    "global.training.resources.limits": {"memory": "64Gi"},
    "global.training.gpuResource": "amd.com/gpu",
    "global.training.unrestricted.runAsRoot": True,
    "global.training.rdma.resource": "rdma/ib",
    "global.training.rdma.env": [{"name": "NCCL_IB_HCA", "value": "ibp"}],
    "global.training.rdma.by": "claims",
    "global.training.envScript": "/usr/local/gib/scripts/set_nccl_env.sh",
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-further"}}],
    "global.training.jobAnnotations": {"team": "vision"},
    **{f"{owner}.jobLabels": {"team": "vision"} for owner in ("global.training", "dataset", "evaluate")},
    "global.training.gpusBy": "node",
    "evaluate.gpusBy": "node",
    "evaluate.gpuResource": "amd.com/gpu",
    "evaluate.resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "h100"}],
    "global.training.extraInitContainers": [{"name": "first", "image": "busybox:1"}],
    "global.training.resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "h100"}],
    "dataset.jobAnnotations": {"team": "vision"},
    "evaluate.jobAnnotations": {"team": "vision"},
    "evaluate.data": "/data/other",
    "evaluate.split": "train",
    "dataset.source.kind": "kaggle",
    "dataset.source.url": "http://other.example.com/pictures.zip",
    "dataset.source.path": "/data/pictures.zip",
    "dataset.source.dataset": "some/other",
    "dataset.source.endpoint": "http://minio.example.com:9000",
    "dataset.settings": {"workers": 3},
    "pytorchjob.training": {"nodes": 3},
    "mpijob.training": {"nodes": 3},
    "trainjob.training": {"nodes": 3},
    "trainjob.version": "2.1",
    "global.training.operator": "trainjob",
    "pytorchjob.form": "elastic",
    "networkPolicy.ingress": False,
    "networkPolicy.enabled": True,
    "global.storage.scratchSize": "7Gi",
    "dataset.source.sha256": "0123456789abcdef" * 4,
    "networkPolicy.dns": [{"ipBlock": {"cidr": "169.254.20.10/32"}}],
    "networkPolicy.training.egress": [{"ports": [{"port": 443}]}],
    "networkPolicy.training.ingress": [{"from": [{"podSelector": {}}]}],
    "networkPolicy.dataset.egress": [],
    "networkPolicy.metrics.from": [{"podSelector": {}}],
    "global.metrics.kind": "podMonitor",
    "global.metrics.interval": "15s",
    "global.metrics.labels": {"release": "prometheus"},
    **{f"global.metrics.rules.{key}": 0.4 for key in ("slowRankShare", "goodputShare", "dataWaitShare")},
    "secrets.external.store.kind": "SecretStore",
    "secrets.external.refreshInterval": "2h",
    "secrets.external.objectstore.properties": {"AWS_ACCESS_KEY_ID": "id"},
    "secrets.external.kaggle.properties": {"KAGGLE_API_TOKEN": "token"},
    "secrets.external.http.properties": {"netrc": "file"},
    "secrets.external.wandb.properties": {"WANDB_API_KEY": "key"},
    "secrets.external.mlflow.properties": {"MLFLOW_TRACKING_TOKEN": "token"},
    **{
        f"{job}.runPolicy.{key}": other
        for job in ("pytorchjob", "mpijob", "trainjob")
        for key, other in {
            "backoffLimit": 7,
            "activeDeadlineSeconds": 60,
            "ttlSecondsAfterFinished": 60,
            "suspend": True,
            "managedBy": "kueue.x-k8s.io/multikueue",
        }.items()
    },
    **{
        f"{owner}.resources.{kind}": {"memory": "7Gi"}
        for owner in ("dataset", "evaluate", "mpijob.launcher", "filebrowser")
        for kind in ("requests", "limits")
    },
    **{
        f"{owner}.{key}": other
        for owner in ("global.training", "dataset", "evaluate", "mpijob.launcher", "filebrowser")
        for key, other in {
            "env": [{"name": "TEAM", "value": "vision"}],
            "envFrom": [{"secretRef": {"name": "proxy"}}],
            "extraVolumes": [{"name": "local", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "local", "mountPath": "/local"}],
            "extraContainers": [{"name": "beside", "image": "busybox:1"}],
            "podLabels": {"team": "vision"},
            "podAnnotations": {"team": "vision"},
            "scheduling": {"nodeSelector": {"disk": "fast"}},
            "securityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}},
            "runtimeClassName": "nvidia",
            "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["archive"]}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
            "dnsPolicy": "Default",
            "hostUsers": False,
            "serviceAccount.name": "own",
            "serviceAccount.create": True,
            "serviceAccount.token": True,
            "serviceAccount.annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/reader"},
        }.items()
    },
    "secrets.external.registry.properties": {".dockerconfigjson": "config"},
    "pytorchjob.runPolicy.cleanPodPolicy": "None",
    "mpijob.runPolicy.cleanPodPolicy": "None",
    "filebrowser.auth.password": "another-password",
    "filebrowser.ingress.annotations": {"example.com/team": "vision"},
    "filebrowser.command": ["filebrowser"],
    "filebrowser.args": ["--root=/srv"],
    "networkPolicy.filebrowser.ingress": [{"from": [{"podSelector": {}}]}],
}
# What must hold for a value to matter.
METRICS = helm.at("global.metrics", {"enabled": True, "kind": "podMonitor", "rules": {"enabled": True}})
CONTEXT: dict[str, helm.Values] = {
    **{f"global.metrics.{key}": METRICS for key in ("port", "interval", "labels")},
    **{f"global.metrics.rules.{key}": METRICS for key in helm.defaults()["global"]["metrics"]["rules"]},
    "global.metrics.kind": helm.at("global.metrics.enabled", True),
    "networkPolicy.metrics.from": helm.merged(METRICS, helm.at("networkPolicy.enabled", True)),
    "global.dataset.idleWait": helm.at("global.scheduling.queue", "vision"),
    "trainjob.version": helm.at("trainjob.runPolicy.activeDeadlineSeconds", 60),
    "global.training.rdma.count": RDMA,
    "global.training.rdma.by": helm.at(
        "global.training.resourceClaims", [{"name": "efa", "resourceClaimTemplateName": "efa"}]
    ),
    **{
        f"{owner}.serviceAccount.annotations": helm.at(f"{owner}.serviceAccount.create", True)
        for owner in ("global.training", "dataset", "evaluate", "mpijob.launcher", "filebrowser")
    },
    "global.training.rdma.env": RDMA,
    **{
        f"global.scheduling.gang.{key}": helm.at("global.scheduling.gang.enabled", True)
        for key in ("queue", "priorityClass", "timeoutSeconds")
    },
    **{
        f"pytorchjob.elastic.{key}": helm.at("pytorchjob", {"form": "elastic", "elastic": {"maxRestarts": 9}})
        for key in ("minNodes", "maxRestarts", "spares")
    },
    **{
        f"networkPolicy.{key}": helm.at("networkPolicy.enabled", True)
        for key in ("dns", "dnsPort", "training.egress", "training.ingress", "dataset.egress")
    },
    **{
        f"secrets.external.{key}": EXTERNAL
        for key in (
            "store.name",
            "store.kind",
            "refreshInterval",
            "wait",
            *(
                f"{which}.{key}"
                for which in ("kaggle", "objectstore", "http", "wandb", "mlflow", "registry")
                for key in ("remoteKey", "properties")
            ),
        )
    },
    **{
        f"secrets.objectstore.{key}": helm.at("secrets.objectstore", {"accessKeyId": "a", "secretAccessKey": "b"})
        for key in ("accessKeyId", "secretAccessKey", "sessionToken", "region")
    },
    **{
        f"secrets.mlflow.{key}": helm.at("secrets.mlflow", {"username": "a", "password": "b"})
        for key in ("username", "password")
    },
    "secrets.registry.server": helm.merged(PULL, helm.at("secrets.registry", {"username": "a", "password": "b"})),
    "dataset.source.competition": KAGGLE,
    "dataset.source.path": helm.at("dataset.source", {"url": "", "path": "/data/first.zip"}),
    "dataset.source.dataset": helm.at("dataset.source", {"url": "", "dataset": "some/set"}),
    "dataset.source.endpoint": OBJECTS,
    "dataset.source.anonymous": OBJECTS,
    "global.secrets.objectstore.existingSecret": OBJECTS,
    "global.secrets.kaggle.existingSecret": KAGGLE,
    "global.caBundle.key": helm.at("global.caBundle.configMap", "company"),
    **{
        f"{owner}.extraVolumeMounts": helm.at(f"{owner}.extraVolumes", [{"name": "local", "emptyDir": {}}])
        for owner in ("global.training", "dataset", "evaluate", "mpijob.launcher", "filebrowser")
    },
    **{
        f"global.training.{key}": helm.at("global.training", {"gpusPerNode": 2, "processesPerNode": 0})
        for key in ("gpuResource", "gpuMemoryTest", "gpusBy")
    },
    **{f"evaluate.{key}": helm.at("evaluate.gpus", 1) for key in ("gpuResource", "gpusBy")},
    "filebrowser.auth.existingSecret": helm.at("filebrowser.auth.password", ""),
    **{
        f"filebrowser.ingress.{key}": helm.at("filebrowser.ingress", {"enabled": True, "host": "files.example.com"})
        for key in ("className", "host", "tls.secretName", "annotations")
    },
    "networkPolicy.filebrowser.ingress": helm.at("networkPolicy.enabled", True),
    "global.secrets.wandb.existingSecret": helm.at("secrets.enabled", False),
}


def flat(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted paths of values that hold no further keys."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from flat(value, f"{path}.{key}" if path else key)
    else:
        yield path, values


def other(path: str, value: Any) -> Any:
    """Return another valid value for a path."""
    last = path.rsplit(".", 1)[-1]
    if path in OTHER:
        return OTHER[path]
    if path == "global.training.recipe":
        known = helm.schema()["$defs"]["recipe"]["enum"]
        return next((name for name in known if name != "demo"), None)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return {"digest": DIGEST, "cpu": "7", "memory": "7Gi", "size": "7Gi", "shmSize": "7Gi", "minNodes": 1}.get(
        last, "changed"
    )


LEAVES = helm.leaves()
APART = ("dataset", "evaluate", "filebrowser", "pytorchjob", "mpijob", "trainjob")


def section(text: str, part: str) -> str:
    """Return what one part of the chart renders."""
    return "".join(re.findall(rf"^# Source: trainyard/charts/{part}/.*?(?=^---\n# Source|\Z)", text, re.M | re.S))


def bundled() -> dict[str, tuple[str, str]]:
    """What a part renders before and after a value of its own is changed, with one of each other part.

    No value of these changes what another part renders. Left out is what seems to do nothing: it is looked at alone.
    """
    plain = helm.everything()
    known = dict(flat(helm.merged(helm.defaults(), plain)))
    own = [[path for path in LEAVES if path.startswith(f"{part}.") and path not in CONTEXT] for part in APART]
    own = [[path for path in paths if not path.endswith(".enabled")] for paths in own]
    rows = [[path for path in row if path] for row in zip_longest(*own)]
    changes = [[helm.at(path, other(path, known.get(path, LEAVES[path]))) for path in row] for row in rows]
    before, *answers = helm.render_all([plain, *(helm.merged(plain, *row) for row in changes)])
    found = {}
    for row, answer in zip(rows, answers, strict=True):
        for path in row:
            part = path.partition(".")[0]
            pair = section(before["manifests"], part), section(answer.get("manifests", ""), part)
            if all(pair) and pair[0] != pair[1]:
                found[path] = pair
    return found


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str, str]]:
    """What values render, or the words in which they are refused, before and after each value is changed."""
    cases, plain, found = [], helm.everything(), bundled()
    known = dict(flat(helm.merged(helm.defaults(), plain)))
    alone = {path: default for path, default in LEAVES.items() if path not in found}
    for path, default in alone.items():
        before = helm.merged(plain, CONTEXT[path]) if path in CONTEXT else plain
        whole = dict(flat(helm.merged(helm.defaults(), before))) if path in CONTEXT else known
        current = whole.get(path, default)
        cases += [before, helm.merged(before, helm.at(path, other(path, current)))]
    said = [answer.get("manifests") or answer.get("error", "") for answer in helm.render_all(cases)]
    return found | dict(zip(alone, zip(said[::2], said[1::2], strict=True), strict=True))


@pytest.mark.parametrize("path", LEAVES)
def test_every_value_does_something(path: str, outcomes: dict[str, tuple[str, str]]):
    before, after = outcomes[path]
    assert "don't meet the specifications" not in before + after
    assert after != before


def test_every_value_that_a_template_reads_is_declared():
    known = helm.defaults()
    for path in helm.templates():
        chart = path.relative_to(helm.CHART).parts[1] if "charts" in path.relative_to(helm.CHART).parts else "trainyard"
        for name in re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", path.read_text()):
            here = known if name.startswith("global") or chart in ("trainyard", "common") else known[chart]
            for key in name.split("."):
                # The library reads what every job has.
                here = here[key] if chart != "common" or key in here else known["mpijob"][key]


PINNED = helm.at("image.digest", DIGEST)
EXCLUSIVE = {
    "global.storage.data.existingClaim names an existing claim": helm.at(
        "global.storage.data", {"existingClaim": "a", "size": "1Ti"}
    ),
    "global.storage.results.existingClaim names an existing claim": helm.at(
        "global.storage.results", {"existingClaim": "a", "annotations": {"example.com/team": "vision"}}
    ),
    "global.image.tag is 0.1.0-abc, and every image has a digest": dict.fromkeys(
        ("dataset", "evaluate", "pytorchjob", "mpijob", "trainjob", "filebrowser"), PINNED
    ),
    "filebrowser.auth.existingSecret names the password's Secret": helm.at("filebrowser.auth.existingSecret", "page"),
}


@pytest.mark.parametrize("said", EXCLUSIVE)
def test_two_answers_to_one_question_are_an_error_that_says_what_to_leave_out(said: str):
    with pytest.raises(helm.HelmError) as caught:
        helm.template(helm.merged(helm.everything(), EXCLUSIVE[said]))
    assert re.search(re.escape(said) + r"[^\n]*(leave|out)[^\n]* out", str(caught.value))


def test_claims_of_default_size_are_made_where_nothing_names_one():
    for values, sizes in (({}, ["300Gi", "100Gi"]), (helm.at("global.storage.results.size", "2Ti"), ["300Gi", "2Ti"])):
        made = helm.documents(helm.template(helm.merged(helm.everything(), values)))
        claims = [one["spec"] for one in made if one["kind"] == "PersistentVolumeClaim"]
        assert [claim["resources"]["requests"]["storage"] for claim in claims] == sizes
        assert all(claim["accessModes"] == ["ReadWriteMany"] for claim in claims)
