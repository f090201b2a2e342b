"""The chart's README: the keys that most people set, then all keys of all parts, by what they are for."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from bundle import REF, Schema

# Each with an example and what it says.
FIRST: tuple[tuple[str, str, str], ...] = (
    ("global.image.registry", "`registry.example.com/team`", "where the images are; `make push REGISTRY=...` puts them there"),
    ("global.image.tag", "`0.1.0-0123456789ab`", "which of them; `scripts/images/tag` prints it"),
    ("dataset.source", "`{url: https://data.example.com/pets.zip}`", "where the dataset comes from: a web server, S3, Kaggle, a path"),
    ("dataset.settings.layout", "`imagefolder`", "how it is laid out; default ImageNet's"),
    ("global.dataset.name", "`pets`", "its folder on the data claim"),
    ("global.training.nodes", "`2`", "pods that train"),
    ("global.training.gpusPerNode", "`8`", "GPUs, and so processes, of each"),
    ("global.training.recipe", "`resnet50-nvidia-90`", "settings to start from"),
    ("global.training.config", "`{epochs: 18, batch: {global: 4096}}`", "any setting of the trainer, below"),
    ("global.training.resources", "`{requests: {cpu: 64, memory: 256Gi}}`", "CPU and memory of each node's pod"),
    ("global.training.operator", "`mpijob`", "Horovod instead of DDP; `trainjob` for Kubeflow Trainer v2"),
    ("global.storage.data.storageClass", "`shared-nvme`", "storage for the dataset; `results` likewise"),
    ("global.storage.data.existingClaim", "`imagenet`", "a claim that is there, instead of one to make"),
    ("global.secrets.wandb.existingSecret", "`wandb`", "Weights & Biases: a Secret with `WANDB_API_KEY`; without it nothing is reported"),
    ("global.training.config.checkpoint.every_seconds", "`300`", "most seconds of work that a lost spot node costs"),
    ("global.scheduling", "`{nodeSelector: {pool: gpu}}`", "where all pods go; `scheduling` of a part replaces it key by key"),
)  # fmt: skip


class Section(NamedTuple):
    """A part of the page: its title, a line or two, and the beginnings of the paths that it lists."""

    title: str
    intro: str
    prefixes: tuple[str, ...]


SECTIONS = (
    Section("Images", "", ("global.image", "pytorchjob.image", "mpijob.image", "trainjob.image", "dataset.image")),
    Section("Every object and pod", "", ("global.labels", "global.serviceAccountName", "global.caBundle")),
    Section(
        "Storage",
        "Claims are made, unless `existingClaim` names one, and kept on uninstall.",
        ("storage", "global.storage"),
    ),
    Section(
        "Secrets",
        "A Secret that is named must be there before a pod starts. Values that make one are for trials: they stay readable in the release.",
        ("global.secrets", "secrets"),
    ),
    Section("Dataset", "", ("global.dataset", "dataset")),
    Section(
        "Training",
        "What all jobs train. `pytorchjob.training`, `mpijob.training` and `trainjob.training` override any of it for one job.",
        ("global.training",),
    ),
    Section("PyTorchJob", "", ("pytorchjob",)),
    Section("MPIJob", "", ("mpijob",)),
    Section("TrainJob", "", ("trainjob",)),
    Section("Placement, queues and gangs", "", ("global.scheduling",)),
    Section("Metrics", "", ("global.metrics",)),
    Section("File browser", "", ("filebrowser",)),
    Section("Network policies", "", ("networkPolicy",)),
)
PODS = (
    ("`global.training`", "the training pods"),
    ("`mpijob.launcher`", "the pod that runs mpirun; of the trainers' settings it takes over `env` alone"),
    ("`dataset`", "the pods that prepare the dataset"),
    ("`filebrowser`", "the file browser"),
)
INTRO = """# trainyard

Train image classifiers on Kubernetes with PyTorchJob, MPIJob or TrainJob, from one values file. What the values are for, with
complete files: [docs/chart.md](../../docs/chart.md); for a cloud or a cluster of your own: [docs/clusters.md](../../docs/clusters.md). What
a message asks for: [docs/troubleshooting.md](../../docs/troubleshooting.md).

A run must be told three things: its image, where its dataset comes from, and on how many nodes and GPUs it trains.

```yaml
global:
  image: {registry: registry.example.com/team, tag: 0.1.0-0123456789ab}
  training: {nodes: 2, gpusPerNode: 8}
dataset:
  source: {competition: imagenet-object-localization-challenge}
```

A key that nothing reads is an error that says what was probably meant, also under a part that is off and inside the trainer's own settings:
`pytorchjob.nodes is not a key of this chart: write global.training.nodes, or pytorchjob.training.nodes for this job alone.`

This page is made of the annotated values by `scripts/schemas/generate`.
"""


class Row(NamedTuple):
    """A key, its type, default and description."""

    path: str
    kind: str
    default: str
    text: str


def chart(schema: Schema, pool: Schema, values: dict[str, Any]) -> str:
    """Return the page, from the whole schema and the default values of the umbrella ('') and the subcharts."""
    merged: dict[str, Any] = {name: part for name, part in values.items() if name}
    merged |= {key: {**merged.get(key, {}), **part} for key, part in values[""].items() if isinstance(part, dict)}
    found = list(rows(schema, pool, merged, ""))
    every = set(pool["pod-settings"]["properties"])
    pods = [
        row
        for row in found
        if row.path.rpartition(".")[0] == "global.training" and row.path.rpartition(".")[2] in every
    ]
    owners = [owner.strip("`") for owner, _ in PODS]
    rest = [
        row for row in found if not (row.path.rpartition(".")[0] in owners and row.path.rpartition(".")[2] in every)
    ]
    parts = [INTRO, first(), *(section(one, rest) for one in SECTIONS), settings(pods), trainer(pool)]
    listed = {row.path for one in SECTIONS for row in chosen(one, rest)}
    assert listed == {row.path for row in rest}, {row.path for row in rest} - listed
    return "\n".join(parts)


def first() -> str:
    """The few keys that most people set."""
    lines = ["## What most runs set", "", "| key | for example | what it says |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| `{key}` | {example} | {text} |" for key, example, text in FIRST), ""])


def chosen(one: Section, found: list[Row]) -> list[Row]:
    """The rows of a section; a key belongs to the section with the longest beginning of its path."""

    def best(path: str) -> int:
        return max((len(p) for p in one.prefixes if path == p or path.startswith(f"{p}.")), default=0)

    def others(path: str) -> int:
        return max(
            (len(p) for s in SECTIONS if s is not one for p in s.prefixes if path == p or path.startswith(f"{p}.")),
            default=0,
        )

    return [row for row in found if best(row.path) > others(row.path)]


def section(one: Section, found: list[Row]) -> str:
    """A section with its table."""
    mine = sorted(
        chosen(one, found),
        key=lambda row: next(i for i, p in enumerate(one.prefixes) if row.path == p or row.path.startswith(f"{p}.")),
    )
    return "\n".join([f"## {one.title}", "", *([one.intro, ""] if one.intro else []), *table(mine), ""])


def settings(pods: list[Row]) -> str:
    """The settings that every kind of pod has."""
    named = [row._replace(path=row.path.rpartition(".")[2]) for row in pods]
    own = [f"- {where}: {what}" for where, what in PODS]
    intro = "Every kind of pod has these under the same names, beside the `resources` in its own table. None has a default. They stand under:"
    return "\n".join(["## Settings of pods", "", intro, "", *own, "", *table(named), ""])


def trainer(pool: Schema) -> str:
    """The trainer's own settings, from its schema."""
    found = list(rows(pool["trainer-config"], pool, {}, ""))
    lines = [f"| `{row.path}` | {row.kind} | {row.text} |" for row in found]
    head = [
        "## The trainer's settings",
        "",
        "Under `global.training.config`; what is left out comes from the recipe.",
        "",
    ]
    return "\n".join([*head, "| key | type | what it says |", "| --- | --- | --- |", *lines, ""])


def table(found: list[Row]) -> list[str]:
    """Lay rows out."""
    lines = [f"| `{row.path}` | {row.kind} | {row.default} | {row.text} |" for row in found]
    return ["| key | type | default | what it says |", "| --- | --- | --- | --- |", *lines]


def rows(schema: Schema, pool: Schema, values: Any, path: str) -> Iterator[Row]:
    """Yield the keys below a schema, in its order."""
    for key, value in schema["properties"].items():
        here = f"{path}.{key}" if path else key
        if here == "common" or key == "global" and path:
            continue
        name = value.get("$ref", "").removeprefix(REF)
        target = pool.get(name, {}) if name else value
        default = values.get(key) if isinstance(values, dict) else None
        inside = "properties" in target and not name.startswith("k8s.") and name not in ("training", "trainer-config", "placement", "dataset-placement", "pod-security", "resources")  # fmt: skip
        if inside and not (here.endswith("properties")):
            yield from rows(target, pool, default, here)
        else:
            text = " ".join(value.get("description", target.get("description", "")).split())
            yield Row(here, kind(value, target, name), shown(default), text.replace("|", "\\|"))


def kind(value: Schema, target: Schema, name: str) -> str:
    """A key's type, in a word."""
    if name.startswith("k8s."):
        return "map"
    types = target.get("type", value.get("type", "map" if "properties" in target else "text"))
    words = {"string": "text", "integer": "number", "boolean": "true, false", "array": "list", "object": "map"}
    types = types if isinstance(types, list) else [types]
    return " or ".join(dict.fromkeys(words.get(one, one) for one in types))


def shown(default: Any) -> str:
    """A default value, as it would be written."""
    return "" if default is None or default in ("", [], {}) else f"`{json.dumps(default)}`".replace("|", "\\|")
