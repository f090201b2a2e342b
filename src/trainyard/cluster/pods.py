"""A release's pods by part and by rank: which pod prints what a rank prints."""

from typing import NamedTuple

from trainyard.cluster import follow, inventory, jobs, trainjobs
from trainyard.cluster.errors import KubeError
from trainyard.cluster.findings import conditions

PARTS = {"train": jobs.TRAINS, "dataset": ("dataset",), "evaluate": ("evaluate",), "filebrowser": ("filebrowser",)}
# Labels with a job's name, by precedence: an MPIJob's launcher and a TrainJob's pods have that of an inner Job, too
JOB_LABELS = ("training.kubeflow.org/job-name", trainjobs.JOBSET_NAME, "batch.kubernetes.io/job-name")
REPLICA, INDEX = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
ROLE = "training.kubeflow.org/job-role"


class Part(NamedTuple):
    """The pods of the newest job of a part, by number of the node; -1 is an MPIJob's launcher."""

    name: str  # of the job; empty where the part has none
    pods: dict[int, dict]
    job: dict | None = None  # None where it is gone, or the part is no job

    def ended(self) -> bool:
        """Whether the job has ended, or is gone."""
        return self.job is None or bool(follow.ENDED & set(conditions(self.job)))

    def holding(self, rank: int) -> list[int]:
        """Return the numbers of the pods that print what a rank prints; raises KubeError for one that is not there."""
        if -1 in self.pods:
            return [-1]  # mpirun passes on what all ranks print
        nodes, processes, spares = jobs.size(self.job) if self.job else (None, None, 0)
        node = rank // (processes or 1)
        if nodes and node >= nodes + spares:
            last = nodes * (processes or 1) - 1
            raise KubeError(f"job {self.name} has no rank {rank}: name one from 0 to {last} by --rank")
        return [node]

    def short(self, number: int) -> str:
        """Return the name of a pod without its job's, such as worker-1."""
        name = self.pods[number]["metadata"]["name"].removeprefix(f"{self.name}-")
        return "launcher" if number == -1 else name


def job_name(pod: dict) -> str:
    """Return the name of a pod's job."""
    labels = pod["metadata"].get("labels", {})
    return next((labels[label] for label in JOB_LABELS if label in labels), "")


def number(pod: dict, masters: bool) -> int:
    """Return the number of a pod's node in its job; with `masters`, workers are counted after the Master."""
    labels = pod["metadata"].get("labels", {})
    if "launcher" in (labels.get(ROLE), labels.get(REPLICA)):
        return -1
    index = int(labels.get(INDEX) or labels.get(trainjobs.INDEX) or 0)
    return index + (masters and labels.get(REPLICA) == "worker")


def read(release: str, namespace: str, part: str) -> Part:
    """Read the newest job of a part and its pods; raises KubeError."""
    wanted = dict.fromkeys((*follow.JOBS, trainjobs.RUNTIMES, "pods"), f"{inventory.INSTANCE}={release}")
    refused: list[dict] = []
    objects = inventory.list_kinds(wanted | {trainjobs.TRAINJOBS: ""}, namespace, refused)
    mine = [pod for pod in objects["pods"] if pod["metadata"]["labels"].get(jobs.PART) in PARTS[part]]
    works = [job for owner, job in jobs.all_jobs(objects) if owner == release and jobs.kind(job) in PARTS[part]]
    works.sort(key=lambda job: job["metadata"]["creationTimestamp"])
    mine.sort(key=lambda pod: pod["metadata"]["creationTimestamp"])
    if not works and not mine:
        raise KubeError(refused[0]["said"] if refused else absent(release, namespace, part, objects["pods"]))
    name = works[-1]["metadata"]["name"] if works else job_name(mine[-1])
    own = [pod for pod in mine if job_name(pod) == name]
    roles = {pod["metadata"]["labels"].get(REPLICA) for pod in own}  # where this user may not list jobs
    masters = "master" in roles or (bool(works) and "Master" in jobs.replicas(works[-1]))
    return Part(name, {number(pod, masters): pod for pod in own}, works[-1] if works else None)  # the newest of each


def absent(release: str, namespace: str, part: str, others: list[dict]) -> str:
    """Say that a release has no such part, and which ones it has."""
    names = {pod["metadata"]["labels"].get(jobs.PART) for pod in others}
    there = ", ".join(part for part, own in PARTS.items() if names.intersection(own))
    remedy = f"name one that is there by --part: {there}" if there else f"helm list -n {namespace} shows its releases"
    return f"release {release} has no part {part} in namespace {namespace}: {remedy}"


class StartedContainer(NamedTuple):
    """A container that has started at least once."""

    name: str
    restarts: int
    ended: bool


def container(pod: dict) -> StartedContainer | None:
    """Return the container whose log tells what a pod does now; None before one has started."""
    status = pod.get("status", {})
    for one in (*status.get("containerStatuses", []), *reversed(status.get("initContainerStatuses", []))):
        if "running" in one["state"] or "terminated" in one["state"]:
            return StartedContainer(one["name"], one.get("restartCount", 0), "terminated" in one["state"])
    return None


def newest(release: str, namespace: str, part: str, name: str) -> Part:
    """Read a part again; its newest job may be another by now."""
    found = read(release, namespace, part)
    return found if found.name == name else Part(name, {})
