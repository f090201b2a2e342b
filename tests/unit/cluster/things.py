"""Objects of releases as an API server shows them, for tests of the commands."""

from collections.abc import Iterator
from typing import Any

CREATED, STARTED, ENDED = "2026-11-21T11:00:00Z", "2026-11-21T11:10:00Z", "2026-11-21T13:10:00Z"


class Counted(list[dict]):
    """Objects that count how often somebody reads all of them."""

    read = 0

    def __iter__(self) -> Iterator[dict]:
        self.read += 1
        return super().__iter__()


def labels(release: str, part: str) -> dict[str, str]:
    own = {"instance": release, "name": part, "part-of": "trainyard"}
    return {f"app.kubernetes.io/{key}": value for key, value in own.items()}


def meta(name: str, release: str, part: str, namespace: str = "vision", **more: Any) -> dict:
    known = {"name": name, "uid": name, "namespace": namespace, "creationTimestamp": CREATED}
    return known | {"labels": labels(release, part) | more.pop("labels", {})} | more


def status(*conditions: str, **more: Any) -> dict:
    held = [
        {"type": one, "status": "True", "message": f"it is {one}", "lastTransitionTime": ENDED} for one in conditions
    ]
    return {"conditions": held, **more}


def template(gpus: int = 0, claims: tuple[str, ...] = (), resource: str = "nvidia.com/gpu") -> dict:
    limits = {resource: str(gpus), "rdma/ib": "1"} if gpus else {}
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], "volumes": volumes}}


def pytorchjob(
    release: str,
    *conditions: str,
    nodes: int = 2,
    gpus: int = 8,
    namespace: str = "vision",
    claims: tuple[str, ...] = (),
) -> dict:
    pods = {"template": template(gpus, claims)}
    specs = {"Master": {"replicas": 1, **pods}} | ({"Worker": {"replicas": nodes - 1, **pods}} if nodes > 1 else {})
    return {
        "kind": "PyTorchJob",
        "metadata": meta(f"{release}-pytorchjob", release, "pytorchjob", namespace),
        "spec": {"nprocPerNode": str(gpus), "pytorchReplicaSpecs": specs},
        "status": status(*conditions, startTime=CREATED),
    }


def pod(job: dict, role: str, state: dict, container: str = "main") -> dict:
    """Return a pod of a job; its role is such as master-0."""
    name, own = f"{job['metadata']['name']}-{role}", job["metadata"]
    kind, _, index = role.rpartition("-")
    marks = {"job-name": own["name"], "replica-type": kind, "replica-index": index}
    marks |= {"job-role": kind} if kind in ("master", "launcher") else {}
    named = {f"training.kubeflow.org/{key}": value for key, value in marks.items()}
    named = own["labels"] | ({"batch.kubernetes.io/job-name": own["name"]} if job["kind"] == "Job" else named)
    owners = [{"uid": own["uid"], "kind": job["kind"]}]
    inside = {"phase": "Running", "startTime": STARTED, "containerStatuses": [{"name": container, "state": state}]}
    return {
        "kind": "Pod",
        "metadata": own | {"name": name, "uid": name, "labels": named, "ownerReferences": owners},
        "spec": template()["spec"],
        "status": inside,
    }


RUNS = {"running": {"startedAt": STARTED}}
OVER = {"terminated": {"exitCode": 0, "finishedAt": ENDED}}
