"""Write the answers of `trainyard init` as a values file of the chart, with comments that say what may be changed."""

import math
from collections.abc import Iterator
from typing import Any

import yaml

from trainyard.cluster.answers import Answers

SECRETS = {"kaggle": "kaggle", "s3": "objectstore", "http": "http"}  # keys under global.secrets, by source

UNNAMED = {  # what is written where no Secret is named, and one may be needed
    "s3": "{objectstore: {existingSecret: bucket}}   # of a private bucket: its keys are named as variables (AWS_...)",
    "http": "{http: {existingSecret: archive}}   # of a server with a login: its key is netrc, or url",
}


def to_yaml(value: Any) -> str:
    """Write a scalar or a list as YAML on one line."""
    return yaml.safe_dump([value], default_flow_style=True, width=math.inf).strip()[1:-1]


def text(answers: Answers) -> str:
    """Return the file."""
    return "\n".join([*heading(), "global:", *indent(global_values(answers)), *dataset(answers)]) + "\n"


def indent(lines: Iterator[str]) -> Iterator[str]:
    """Indent lines by one level."""
    return (f"  {line}" if line else line for line in lines)


def heading() -> Iterator[str]:
    """Yield the comment at the top."""
    yield "# Values of the chart trainyard, written by `trainyard init`. Change it; `trainyard up` applies it."
    yield "# All keys: README.md of the chart (`helm show readme CHART`)."


def global_values(answers: Answers) -> Iterator[str]:
    """Yield what is under `global`."""
    if answers["registry"] or answers["tag"]:  # a published chart names its own
        yield "# Pulled from here: trainyard-pytorch, and trainyard-horovod for an MPIJob."
        yield "image:"
        yield f"  registry: {to_yaml(answers['registry'])}"
        yield f"  tag: {to_yaml(answers['tag'])}"
        yield "  # pullSecrets: [my-registry]   # Secrets to pull them with"
    yield "storage:"
    yield "  # The prepared dataset. A claim that this release makes stays when the release is deleted."
    yield from indent(claim(answers, "data"))
    yield "  # Checkpoints, reports and published weights."
    yield from indent(claim(answers, "results"))
    yield "dataset:"
    yield f"  name: {to_yaml(answers['dataset'])}   # its folder on the data claim"
    yield from secrets(answers)
    yield "training:"
    yield from indent(training(answers))


def claim(answers: Answers, which: str) -> Iterator[str]:
    """Yield the keys of a claim: an existing one's name, or a new one's size and kind."""
    yield f"{which}:"
    if answers[f"{which}_claim"]:
        yield f"  existingClaim: {to_yaml(answers[f'{which}_claim'])}"
        yield "  # subPath: team-a   # a folder of the claim instead of its root"
        return
    yield f"  size: {to_yaml(answers[f'{which}_size'])}"
    if answers["storage_class"]:
        yield f"  storageClass: {to_yaml(answers['storage_class'])}"
    else:
        yield "  # storageClass: shared   # empty: the cluster's default"
    yield f"  accessModes: [{answers['access_mode']}]"


def secrets(answers: Answers) -> Iterator[str]:
    """Yield the names of the Secrets that pods read."""
    named = {SECRETS[answers["source"]]: answers["data_secret"]} if answers["data_secret"] else {}
    if answers["wandb_secret"]:
        named["wandb"] = answers["wandb_secret"]
    if named:
        yield "# Secrets of the release's namespace. They must exist: pods wait for them."
        yield "secrets:"
        for key, name in named.items():
            yield f"  {key}: {{existingSecret: {to_yaml(name)}}}"
    if not answers["data_secret"] and answers["source"] in UNNAMED:
        yield f"# secrets: {UNNAMED[answers['source']]}"


def training(answers: Answers) -> Iterator[str]:
    """Yield what is trained, on how many nodes."""
    yield "# pytorchjob (DDP, FSDP), mpijob (Horovod) or trainjob (Kubeflow Trainer v2); another one continues the run."
    yield f"operator: {answers['operator']}"
    yield f"nodes: {answers['nodes']}   # pods"
    if answers["gpus_per_node"]:
        yield f"gpusPerNode: {answers['gpus_per_node']}   # one process for each"
    else:
        yield f"processesPerNode: {answers['processes_per_node']}   # on CPUs"
        yield "shmSize: 256Mi   # of /dev/shm, by which the processes of a node pass each other images"
    yield from resources(answers)
    yield "# Where the settings start from; `config` overrides them."
    yield f"recipe: {answers['recipe']}"
    yield "config:"
    yield f"  wandb: {{mode: {to_yaml(answers['wandb'])}}}"
    yield "  # epochs: 10   # all settings: docs/reference/trainer-settings.md"


def resources(answers: Answers) -> Iterator[str]:
    """Yield what a training pod requests."""
    asked = {key: answers[key] for key in ("cpu", "memory") if answers[key]}
    if asked:
        inside = ", ".join(f"{key}: {to_yaml(str(value))}" for key, value in asked.items())
        yield f"resources: {{requests: {{{inside}}}}}"
    else:
        yield '# resources: {requests: {cpu: "32", memory: 128Gi}}   # of a pod; default: 1 CPU, 4 GiB per process'


def dataset(answers: Answers) -> Iterator[str]:
    """Yield how the dataset is prepared."""
    source = answers["source"]
    yield "dataset:"
    if source == "prepared":
        yield "  enabled: false   # the claim holds it already"
        return
    kaggle = "dataset" if "/" in answers["address"] else "competition"
    key = {"kaggle": kaggle, "path": "path"}.get(source, "url")
    yield "  source:"
    if key == "competition":
        yield "    # Accept its rules once, on its page."
    if source == "path":
        yield "    # `trainyard send RELEASE FOLDER PATH` copies a folder of your machine there; the Job waits for it."
    yield f"    {key}: {to_yaml(answers['address'])}"
    if answers["endpoint"]:
        yield f"    endpoint: {to_yaml(answers['endpoint'])}"
    if source == "s3" and not answers["data_secret"]:
        yield "    # anonymous: true   # a public bucket, read without keys"
    if answers["address"].startswith("gs://"):
        yield "    # Images with gcsfs; or s3://, an HMAC key, and endpoint: https://storage.googleapis.com"
    yield "  settings:"
    yield f"    layout: {answers['layout']}   # all settings: docs/reference/prepare-settings.md"
    yield '  # resources: {requests: {cpu: "8", memory: 8Gi}}   # the preparation uses as many CPUs as it gets'
    yield "  # parallelism: 4   # pods that share it"
