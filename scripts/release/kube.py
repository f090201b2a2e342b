"""The one place where these scripts talk to the cluster: kubectl, with the user's own kubeconfig."""

import contextlib
import functools
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from release import crds, trainjobs, versions

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
# What scripts/why looks at beside the jobs: further causes of waiting.
CAUSES = ("networkpolicies", "externalsecrets.external-secrets.io", "workloads.kueue.x-k8s.io")
PRIORITY_CLASSES = "workloadpriorityclasses.kueue.x-k8s.io"
OPERATORS = {"pytorchjobs.kubeflow.org": "training-operator", "mpijobs.kubeflow.org": "mpi-operator"}


class KubeError(Exception):
    """kubectl failed; the message is its own, with what to do."""


def program() -> str:
    """Return the kubectl to use: the pinned one of build/bin, else the one on PATH."""
    pinned = Path(__file__).resolve().parents[2] / "build" / "bin" / "kubectl"
    found = str(pinned) if pinned.exists() else shutil.which("kubectl")
    if not found:
        raise KubeError("kubectl is not on PATH: install it, or run `make cluster`, which links one into build/bin")
    return found


def environment() -> dict[str, str]:
    """Return the environment for kubectl: the user's KUBECONFIG, else that of `make cluster` where it is."""
    env = dict(os.environ)
    own = Path(__file__).resolve().parents[2] / "build" / "kubeconfig"
    if "KUBECONFIG" not in env and own.exists():
        env["KUBECONFIG"] = str(own)
    return env


def kubectl(*args: str, stdin: str | None = None, timeout: float = 60) -> str:
    """Run kubectl and return what it prints; raise KubeError with its message."""
    try:
        done = subprocess.run(
            [program(), *args],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KubeError(f"kubectl {' '.join(args[:3])} gave no answer in {timeout:.0f} s: is the cluster up?") from None
    if done.returncode:
        # client-go repeats itself line by line on a lost connection; the last line says it for people
        raise KubeError(done.stderr.strip().split("\n")[-1] or f"kubectl {' '.join(args)} ended {done.returncode}")
    return done.stdout


def items(kind: str, namespace: str, selector: str = "") -> list[dict]:
    """List the objects of a kind in a namespace; a kind that the cluster does not know has none."""
    args = ["get", kind, "-n", namespace, "-o", "json"] + (["-l", selector] if selector else [])
    try:
        return json.loads(kubectl(*args))["items"]
    except KubeError as error:
        if "the server doesn't have a resource type" in str(error):
            return []
        raise


@functools.cache
def definition(kind: str) -> dict | None:
    """Return a custom kind's CRD; None where the cluster does not know it, empty where this user may not look."""
    try:
        return json.loads(kubectl("get", "--raw", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}"))
    except KubeError as error:
        return None if "not found" in str(error).lower() else {}


def missing_kinds() -> list[dict]:
    """Return the kinds of jobs that the cluster does not know."""
    return [{"kind": kind} for kind in crds.NEEDED if definition(kind) is None]


def read_release(release: str, namespace: str) -> dict[str, list[dict]]:
    """Read all that a release owns: objects by kind, with the events of the namespace under `events`."""
    found = listed(dict.fromkeys(KINDS, f"{INSTANCE}={release}") | {"events": "", trainjobs.TRAINJOBS: ""}, namespace)
    found[trainjobs.CHILDREN] = (
        items("jobs.batch", namespace, trainjobs.JOBSET_NAME) if found[trainjobs.JOBSETS] else []
    )
    found[trainjobs.TRAINJOBS] = trainjobs.owned(release, found)
    return found


def listed(kinds: dict[str, str], namespace: str) -> dict[str, list[dict]]:
    """List several kinds at a time, each with its selector: a cluster may be far away."""
    with ThreadPoolExecutor(len(kinds)) as pool:
        waits = {kind: pool.submit(items, kind, namespace, selector) for kind, selector in kinds.items()}
        return {kind: wait.result() for kind, wait in waits.items()}


def read_causes(release: str, namespace: str) -> dict[str, list[dict]]:
    """Read what may keep a release waiting beside its jobs: policies, secrets of stores, queues, others' claims."""
    own = f"{INSTANCE}={release}"
    found = listed({kind: own if "kueue" not in kind else "" for kind in CAUSES}, namespace)
    found["missing_kinds"] = missing_kinds()
    found["crds"] = [crd for kind in crds.NEEDED if (crd := definition(kind))]
    found["trainer_version"] = [{"version": trainer_version()}]
    with contextlib.suppress(KubeError):  # they are the cluster's, and this user may not be allowed to look
        found[PRIORITY_CLASSES] = items(PRIORITY_CLASSES, namespace)
    names = {f"{release}-data", f"{release}-results"}
    found["claims_of_its_name"] = [
        claim for claim in items("persistentvolumeclaims", namespace) if claim["metadata"]["name"] in names
    ]
    return found


def trainer_version() -> str:
    """Return the version of the cluster's Kubeflow Trainer, as it tells everybody; empty where it does not."""
    where = os.environ.get("KUBEFLOW_SYSTEM_NAMESPACE", versions.NAMESPACE)
    try:
        found = json.loads(kubectl("get", "configmap", versions.PUBLIC, "-n", where, "-o", "json"))
    except KubeError:
        return ""
    return found.get("data", {}).get("kubeflow_trainer_version", "")


def logs(pod: str, namespace: str, container: str = "", tail: int = -1) -> str:
    """Return a pod's log, or nothing where the container has not started."""
    args = ["logs", pod, "-n", namespace, f"--tail={tail}"] + (["-c", container] if container else [])
    try:
        return kubectl(*args)
    except KubeError:
        return ""
