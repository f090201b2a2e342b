"""Where a manifest comes from: a file, standard input, or the cluster; and the runtime that a TrainJob names."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trainyard.cluster import kube
from trainyard.cluster.parsing import WrongInputError

KINDS = {
    "pytorchjob": "pytorchjobs.kubeflow.org",
    "mpijob": "mpijobs.kubeflow.org",
    "trainjob": "trainjobs.trainer.kubeflow.org",
}
RUNTIMES = {
    "TrainingRuntime": "trainingruntimes.trainer.kubeflow.org",
    "ClusterTrainingRuntime": "clustertrainingruntimes.trainer.kubeflow.org",
}


class FoundJob(NamedTuple):
    """A job, and the runtime that it names, if it names one and that is there."""

    job: dict
    runtime: dict | None


def read(place: str, namespace: str) -> FoundJob:
    """Return the job of a file, of standard input (-) or of the cluster (KIND/NAME); raises WrongInputError."""
    kind, _, name = place.partition("/")
    if kind.lower().removesuffix("s") in KINDS and name and not Path(place).exists():
        return live(kind.lower().removesuffix("s"), name, namespace)
    documents = of_text(place)
    jobs = [one for one in documents if str(one.get("kind", "")).lower() in KINDS]
    if not jobs:
        kinds = ", ".join(sorted({str(one.get("kind")) for one in documents if one.get("kind")})) or "nothing"
        raise WrongInputError(f"{place} holds {kinds}, and no PyTorchJob, MPIJob or TrainJob")
    if len(jobs) > 1:
        names = ", ".join(f"{one['kind']} {one.get('metadata', {}).get('name', '')}".strip() for one in jobs)
        raise WrongInputError(f"{place} holds {len(jobs)} jobs ({names}): give each its own file")
    return FoundJob(jobs[0], runtime_of(jobs[0], documents))


def of_text(place: str) -> list[dict]:
    """Return the objects of a file, those of a List too; raises WrongInputError for what is no YAML."""
    try:
        written = sys.stdin.read() if place == "-" else Path(place).read_text()
        documents = [one for one in yaml.safe_load_all(written) if isinstance(one, dict)]
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or error
        raise WrongInputError(f"{place}: {what}: give a file, - or KIND/NAME, such as pytorchjob/first") from None
    except yaml.YAMLError as error:
        raise WrongInputError(f"{place} is not YAML: {' '.join(str(error).split())}") from None
    return [item for one in documents for item in (one.get("items", []) if one.get("kind") == "List" else [one])]


def live(kind: str, name: str, namespace: str) -> FoundJob:
    """Return a job of the cluster, with its runtime; raises WrongInputError where it is not there, and KubeError."""
    found = kube.items(KINDS[kind], namespace, fields=f"metadata.name={name}")
    if not found:
        raise WrongInputError(f"there is no {kind} {name} in the namespace {namespace}: name another with -n")
    reference = find_runtime(found[0])
    if reference is None:
        return FoundJob(found[0], None)
    own = reference["kind"] == "TrainingRuntime"
    runtimes = kube.items(
        RUNTIMES[reference["kind"]], namespace if own else None, fields=f"metadata.name={reference['name']}"
    )
    return FoundJob(found[0], runtimes[0] if runtimes else None)


def find_runtime(job: dict) -> dict | None:
    """Return the kind and name of a TrainJob's runtime; None where a job has none."""
    reference: Any = job.get("spec", {}).get("runtimeRef")
    if not isinstance(reference, dict) or not reference.get("name"):
        return None
    return {"kind": reference.get("kind") or "ClusterTrainingRuntime", "name": reference["name"]}


def runtime_of(job: dict, documents: list[dict]) -> dict | None:
    """Return the runtime that a job names, where the same file has it."""
    reference = find_runtime(job)
    for one in documents:
        if reference == {"kind": one.get("kind"), "name": one.get("metadata", {}).get("name")}:
            return one
    return None
