"""Reads a job's objects: release, size, GPUs, claims, state, and how long it has held its GPUs."""

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from trainyard.cluster import follow, inventory, lost_nodes, trainjobs, why
from trainyard.cluster.findings import conditions, since

PART_OF = "app.kubernetes.io/part-of=trainyard"
PART = "app.kubernetes.io/name"
SPARES = "trainyard/spares"
QUEUE = "kueue.x-k8s.io/queue-name"
GPU = re.compile(r"gpu|/mig-")  # nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915, nvidia.com/mig-3g.40gb; not rdma/ib
TRAINS = ("pytorchjob", "mpijob", "trainjob")
# A release's jobs, pods, and the runtimes by which the SDK's TrainJobs belong to it; these jobs have no labels of ours
WATCHED = dict.fromkeys((*follow.JOBS, trainjobs.RUNTIMES, "pods"), PART_OF) | {trainjobs.TRAINJOBS: ""}


class Size(NamedTuple):
    """Pods that train and processes of each, None where the job leaves it to its runtime; and spare pods."""

    nodes: int | None
    processes: int | None
    spares: int = 0


def all_jobs(objects: dict[str, list[dict]]) -> Iterator[tuple[str, dict]]:
    """Yield every job of every release, with the release's name."""
    runtimes = {key(one): release_of(one) for one in objects[trainjobs.RUNTIMES]}
    for job in follow.jobs_of(objects):
        runtime = job["spec"].get("runtimeRef", {}).get("name", "")
        release = release_of(job) or runtimes.get((job["metadata"]["namespace"], runtime), "")
        if release:
            yield release, job


def key(thing: dict) -> tuple[str, str]:
    """Return an object's namespace and name."""
    return thing["metadata"]["namespace"], thing["metadata"]["name"]


def release_of(thing: dict) -> str:
    """Return the release that an object belongs to; empty for none."""
    return str(thing["metadata"].get("labels", {}).get(inventory.INSTANCE, ""))


def kind(job: dict) -> str:
    """Return what a job does: pytorchjob, mpijob, trainjob, dataset or evaluate."""
    own = job["kind"].lower()
    return str(own if own in TRAINS else job["metadata"].get("labels", {}).get(PART, own))


def replicas(job: dict) -> dict[str, dict]:
    """Return the kinds of replicas of a PyTorchJob or MPIJob that train; those of other jobs are none."""
    found = job["spec"].get("pytorchReplicaSpecs") or job["spec"].get("mpiReplicaSpecs") or {}
    return {name: one for name, one in found.items() if name != "Launcher"}


def size(job: dict) -> Size:
    """Return how many pods of a job train, how many processes in each, and how many pods are spare."""
    spec = job["spec"]
    if job["kind"] == "TrainJob":
        trainer = spec.get("trainer") or {}
        nodes, processes = trainer.get("numNodes"), trainer.get("numProcPerNode")
        noted = str((job["metadata"].get("annotations") or {}).get(SPARES, ""))
        spares = int(noted) if noted.isdecimal() else 0
        return Size(nodes and nodes - spares, processes if isinstance(processes, int) else None, spares)
    if job["kind"] == "Job":
        return Size(spec.get("parallelism", 1), 1)
    each = spec.get("slotsPerWorker") or spec.get("nprocPerNode") or 1
    processes = int(each) if str(each).isdecimal() else None
    pods = sum(one.get("replicas", 1) for one in replicas(job).values())
    nodes = min(pods, spec.get("elasticPolicy", {}).get("maxReplicas", pods)) - spare_workers(spec)
    return Size(nodes, processes, pods - nodes)


def spare_workers(spec: dict) -> int:
    """Return how many workers of an MPIJob are spare, by its launcher's command (src/trainyard/pod/mpi.py)."""
    pod = spec.get("mpiReplicaSpecs", {}).get("Launcher", {}).get("template", {}).get("spec", {})
    words = [word for one in pod.get("containers", []) for word in one.get("command") or []]
    own = words[: words.index("--")] if "--" in words else []
    return next((int(count) for name, count in pairwise(own) if name == "--spares" and count.isdecimal()), 0)


def pod_spec(job: dict, runtimes: list[dict]) -> dict:
    """Return the spec of the pods that do a job's work; empty where its runtime is not there."""
    if job["kind"] == "TrainJob":
        wanted = (job["metadata"]["namespace"], job["spec"].get("runtimeRef", {}).get("name"))
        for runtime in runtimes:
            if key(runtime) == wanted:
                (first, *_) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
                return dict(first["template"]["spec"]["template"]["spec"])
        return {}
    templates = [one["template"] for one in replicas(job).values()] or [job["spec"].get("template", {})]
    return dict(templates[0].get("spec", {}))


def gpus(job: dict, runtimes: list[dict]) -> int:
    """Return how many GPUs all pods of a job request together."""
    own = (job["spec"].get("trainer") or {}).get("resourcesPerNode")
    containers = [{"resources": own}] if own else pod_spec(job, runtimes).get("containers", [])
    limits = [one.get("resources", {}).get("limits") or {} for one in containers]
    each = sum(int(count) for one in limits for name, count in one.items() if GPU.search(name))
    nodes, _, spares = size(job)
    return each * ((nodes or 1) + spares)


def claims(job: dict, runtimes: list[dict]) -> set[str]:
    """Return the names of the claims that a job's pods mount."""
    return mounted_claims(pod_spec(job, runtimes))


def mounted_claims(spec: dict) -> set[str]:
    """Return the names of the claims that a pod of this spec mounts."""
    volumes = spec.get("volumes", [])
    return {one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one}


def state(job: dict, pod: dict | None, now: datetime) -> str:
    """Return a job's state in one word; `pod` is the one whose log tells how far it is, if it exists."""
    held = conditions(job)
    if "Failed" in held:
        return "Failed"
    if any(one in held for one in why.SUCCEEDED):
        return "Succeeded"
    spec = job["spec"]
    if "Suspended" in held or spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"):
        return "Queued" if QUEUE in job["metadata"].get("labels", {}) else "Suspended"
    if pod is None:
        return "Restarting" if "Restarting" in held else "Pending"
    return "Terminating" if lost_nodes.is_held(pod, now) else state_of_pod(pod)


def state_of_pod(pod: dict) -> str:
    """Return the state of a job whose end is not yet known, from its pod."""
    statuses = list(why.containers(pod))
    for status, init in statuses:
        reason = status["state"].get("waiting", {}).get("reason")
        if reason not in (None, "PodInitializing", "ContainerCreating"):
            return str(reason)
        if status["state"].get("running"):
            return "Waiting" if init else "Running"  # the checks before training wait for the dataset and for peers
    if pod.get("status", {}).get("phase") == "Pending":
        return "Starting" if statuses else "Pending"
    return str(pod.get("status", {}).get("phase", "Pending"))


def seconds_held(job: dict, pod: dict | None, now: datetime) -> float:
    """Return for how many seconds a job has held its nodes: from its start to its end, or to now.

    The time that its present pod waited for a node is left out; pauses between restarts are not.
    """
    status = job.get("status", {})
    held = conditions(job)
    end = next((held[one]["lastTransitionTime"] for one in ("Failed", *why.SUCCEEDED) if one in held), None)
    start = status.get("startTime") or (job["metadata"]["creationTimestamp"] if job["kind"] == "TrainJob" else None)
    if start is None or (pod is None and not end):
        return 0.0
    total = since(start, now) - (since(end, now) if end else 0.0)
    return max(0.0, total - (seconds_without_node(pod, now) if pod else 0.0))


def seconds_without_node(pod: dict, now: datetime) -> float:
    """Return for how many seconds a pod waited for a node."""
    placed = pod.get("status", {}).get("startTime")
    return since(pod["metadata"]["creationTimestamp"], now) - (since(placed, now) if placed else 0.0)
