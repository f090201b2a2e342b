"""A release's objects in the cluster, and those that may keep it waiting: lists by kind, as the API shows them."""

import contextlib
import functools
import os
from concurrent.futures import ThreadPoolExecutor

from trainyard.cluster import crds, kube, lost_nodes, trainjobs, versions
from trainyard.cluster.errors import RefusedError

INSTANCE = "app.kubernetes.io/instance"
KINDS = (
    "persistentvolumeclaims",
    "jobs.batch",
    "pytorchjobs.kubeflow.org",
    "mpijobs.kubeflow.org",
    trainjobs.RUNTIMES,
    trainjobs.JOBSETS,
    "deployments.apps",
    "pods",
)
# What trainyard why looks at beside the jobs: further causes of waiting.
WORKLOADS = "workloads.kueue.x-k8s.io"
CAUSES = ("networkpolicies", "externalsecrets.external-secrets.io", WORKLOADS)
PRIORITY_CLASSES = "workloadpriorityclasses.kueue.x-k8s.io"
MOST_NODES = 64  # that are looked at
OPERATORS = {"pytorchjobs.kubeflow.org": "training-operator", "mpijobs.kubeflow.org": "mpi-operator"}


@functools.cache
def definition(kind: str) -> dict | None:
    """Return a custom kind's CRD; None where the cluster does not know it, empty where this user may not look."""
    try:
        return kube.read(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}")
    except RefusedError as error:
        return None if error.status == 404 else {}


def missing_kinds() -> list[dict]:
    """Return the kinds of jobs that the cluster does not know."""
    return [{"kind": kind} for kind in crds.NEEDED if definition(kind) is None]


def read_release(release: str, namespace: str) -> dict[str, list[dict]]:
    """Read all that a release owns: objects by kind, with the events of the namespace under `events`.

    Under `refused` are kinds that this user may not list, and what the API server said.
    """
    refused: list[dict] = []
    found = list_kinds(
        dict.fromkeys(KINDS, f"{INSTANCE}={release}") | {"events": "", trainjobs.TRAINJOBS: ""}, namespace, refused
    )
    found["refused"] = refused
    found["events"] = [{"message": ""} | event for event in found["events"]]  # the API leaves an empty one out
    found[trainjobs.CHILDREN] = (
        kube.items("jobs.batch", namespace, trainjobs.JOBSET_NAME) if found[trainjobs.JOBSETS] else []
    )
    found[trainjobs.TRAINJOBS] = trainjobs.list_own(release, found)
    return found


def read_all(release: str, namespace: str) -> dict[str, list[dict]]:
    """Read all that a release owns, and what may keep it waiting beside its jobs."""
    own, causes = read_release(release, namespace), read_causes(release, namespace)
    starting = read_nodes(own["pods"])
    return own | causes | {"refused": own["refused"] + causes["refused"], "nodes": starting}


def read_nodes(pods: list[dict]) -> list[dict]:
    """Read the nodes of pods that have not started, as far as this user may: nothing else tells that they are lost."""
    names = sorted({pod["spec"]["nodeName"] for pod in pods if lost_nodes.is_starting(pod)})[:MOST_NODES]

    def look(name: str) -> list[dict]:
        try:
            return [kube.read(f"/api/v1/nodes/{name}")]
        except RefusedError:
            return []

    with ThreadPoolExecutor(16) as pool:
        return [node for found in pool.map(look, names) for node in found]


def list_kinds(
    kinds: dict[str, str], namespace: str | None, refused: list[dict] | None = None
) -> dict[str, list[dict]]:
    """List several kinds at a time, in all namespaces for None, each with its selector: a cluster may be far away.

    With `refused`, kinds that this user may not list, but for pods and claims, are added to it and have no objects.
    """

    def look(kind: str, selector: str) -> list[dict]:
        try:
            return kube.items(kind, namespace, selector)
        except RefusedError as error:
            if refused is None or not kube.is_left_out(kind, error):
                raise
            refused.append({"kind": kind, "said": str(error)})
            return []

    with ThreadPoolExecutor(len(kinds)) as pool:
        waits = {kind: pool.submit(look, kind, selector) for kind, selector in kinds.items()}
        return {kind: wait.result() for kind, wait in waits.items()}


def read_causes(release: str, namespace: str) -> dict[str, list[dict]]:
    """Read what may keep a release waiting beside its jobs: policies, secrets of stores, queues, all claims."""
    own, refused = f"{INSTANCE}={release}", list[dict]()
    found = list_kinds({kind: own if "kueue" not in kind else "" for kind in CAUSES}, namespace, refused)
    found["refused"] = refused
    found["missing_kinds"] = missing_kinds()
    found["crds"] = [crd for kind in crds.NEEDED if (crd := definition(kind))]
    found["trainer_version"] = [{"version": trainer_version()}]
    with contextlib.suppress(RefusedError):  # they are the cluster's, and this user may not be allowed to look
        found[PRIORITY_CLASSES] = kube.items(PRIORITY_CLASSES, None)
    names = {f"{release}-data", f"{release}-results"}
    found["claims_of_namespace"] = kube.items("persistentvolumeclaims", namespace)
    found["claims_of_its_name"] = [one for one in found["claims_of_namespace"] if one["metadata"]["name"] in names]
    return found


def trainer_version() -> str:
    """Return the version of the cluster's Kubeflow Trainer, as it tells everybody; empty where it does not."""
    where = os.environ.get("KUBEFLOW_SYSTEM_NAMESPACE", versions.NAMESPACE)
    try:
        found = kube.read(f"/api/v1/namespaces/{where}/configmaps/{versions.PUBLIC}")
    except RefusedError:
        return ""
    return str(found.get("data", {}).get("kubeflow_trainer_version", ""))
