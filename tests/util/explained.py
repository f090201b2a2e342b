"""Objects of a release as the API server shows them, and what `trainyard why` says of them."""

import re
from datetime import UTC, datetime
from typing import Any

from trainyard.cluster import why

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OLD, YOUNG = "2026-11-21T11:00:00Z", "2026-11-21T11:59:55Z"


def thing(kind: str, name: str, status: dict | None = None, spec: dict | None = None, **metadata: Any) -> dict:
    meta = {"name": name, "uid": f"uid-{name}", "creationTimestamp": OLD, **metadata}
    return {"kind": kind, "metadata": meta, "spec": spec or {}, "status": status or {}}


def event(of: dict, reason: str, message: str, kind: str = "Warning") -> dict:
    return {
        "involvedObject": {"kind": of["kind"], "name": of["metadata"]["name"], "uid": of["metadata"]["uid"]},
        "reason": reason,
        "message": message,
        "type": kind,
        "lastTimestamp": OLD,
    }


def condition(kind: str, message: str = "", status: str = "True", reason: str = "") -> dict:
    return {"type": kind, "status": status, "message": message, "reason": reason}


def explain(**objects: list[dict]) -> str:
    kinds = {"claims": "persistentvolumeclaims", "jobs": "jobs.batch", "pytorchjobs": "pytorchjobs.kubeflow.org"}
    kinds |= {"mpijobs": "mpijobs.kubeflow.org", "workloads": "workloads.kueue.x-k8s.io"}
    kinds |= {"stores": "externalsecrets.external-secrets.io", "classes": "workloadpriorityclasses.kueue.x-k8s.io"}
    every = {"persistentvolumeclaims", "jobs.batch", "pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org", "pods",
             "events", "missing_kinds"}  # fmt: skip
    found = {key: [] for key in every} | {kinds.get(key, key): value for key, value in objects.items()}
    return why.show(why.explain("demo", "vision", found, NOW))


def says(text: str, cause: str, remedy: str) -> None:
    because = re.search(r"because: (.*)", text)
    answer = re.search(r"remedy:  (.*)", text)
    assert because, text
    assert answer, text
    assert cause in because[1], text
    assert remedy in answer[1], text


def over(code: int, message: str = "", reason: str = "Error") -> dict:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": state}]}
    return thing("Pod", "demo-x-worker-0", status)


def definition(kind: str, version: str, *fields: str) -> dict:
    spec: dict = {"properties": {}}
    for path in fields:
        node = spec
        for step in path.split("."):
            node = node["properties"].setdefault(step, {"properties": {}})
    schema = {"openAPIV3Schema": {"properties": {"spec": spec}}}
    return {"metadata": {"name": kind}, "spec": {"versions": [{"name": version, "served": True, "schema": schema}]}}
