"""Kubernetes' messages, each with its remedy."""

import re

from trainyard.cluster.pod_remedies import ADMISSION, CONTAINERS, IMAGES, SCHEDULING, STORAGE

# A pattern in the message of a condition -> the remedy. The first that matches counts.
JOBS: tuple[tuple[str, str], ...] = (
    (
        r"active longer than specified deadline|DeadlineExceeded",
        "activeDeadlineSeconds is over: raise it (runPolicy, dataset.activeDeadlineSeconds or "
        "evaluate.activeDeadlineSeconds) and upgrade, or delete the job and upgrade; a run continues from its last "
        "checkpoint, a dataset from its finished shards",
    ),
    (
        r"backoff limit|BackoffLimitExceeded|ReachedMaxRestarts",
        "it failed as often as backoffLimit allows: see its pods below for the cause, fix it, and upgrade",
    ),
    (
        r"TrainJob resources reconciliation failed.*TrainingRuntime.*not found",
        "the runtime that it names is not there: run helm upgrade again, or correct runtimeRef (kubectl get "
        "trainingruntime,clustertrainingruntime)",
    ),
    (
        r"TrainJob resources reconciliation failed",
        "Kubeflow Trainer cannot make its parts: is JobSet installed, and do the versions fit (docs/operators.md)?",
    ),
    (
        r"PodFailurePolicy|FailJobSet",
        "what it failed on is not cured by another try: see its pods below, correct the values, and upgrade",
    ),
)

QUEUES: tuple[tuple[str, str], ...] = (
    (
        r"Preempted to accommodate",
        "a job of higher priority has its place; it has saved, and continues by itself when there is room "
        "(global.scheduling.queuePriority says who comes first)",
    ),
    (
        r"PodsReady timeout",
        "Kueue gives back the place of a job whose pods are not ready in time (waitForPodsReady), as while images are "
        "pulled or the dataset is prepared: prepare that first (docs/kueue.md), or have its timeout raised",
    ),
    (
        r"LocalQueue \S+ (doesn't exist|not found)",
        "name a LocalQueue of this namespace under global.scheduling.queue (kubectl get localqueue)",
    ),
    (
        r"(LocalQueue|ClusterQueue) \S+ (is inactive|is stopped|doesn't exist|not found)|Queue is stopped",
        "the queue lets nothing in: ask who runs Kueue (kubectl describe localqueue)",
    ),
    (
        r"namespace doesn't match ClusterQueue selector",
        "the ClusterQueue behind the queue does not take this namespace: name another LocalQueue under "
        "global.scheduling.queue, or have its namespaceSelector changed",
    ),
    (
        r"no WorkloadPriorityClass is named",
        "name one that exists under global.scheduling.queuePriority (kubectl get workloadpriorityclass)",
    ),
    (
        r"resource \S+ unavailable in ClusterQueue",
        "the ClusterQueue does not cover that resource: have it added to its coveredResources, or ask for none of it",
    ),
    (
        r"insufficient quota for .* > maximum capacity",
        "it asks for more than its queue ever has: lower global.training.nodes or what a pod asks for "
        "(dataset.parallelism for the dataset), or have the quota raised",
    ),
    (
        r"flavor \S+ doesn't match node affinity|untolerated taint \S+ in flavor",
        "global.scheduling.nodeSelector, affinity or tolerations rule out every flavor's nodes: take them out, Kueue "
        "sets the flavor's",
    ),
    (
        r"insufficient (unused )?quota|couldn't assign flavors",
        "Kueue's queue has no room now: wait, lower global.training.nodes, or have its quota raised",
    ),
    (
        r"mpi-operator: not resumed",
        "mpi-operator's own role keeps it from resuming a job: kubectl apply -f examples/kueue/mpi-operator.yaml "
        "(docs/kueue.md)",
    ),
)

SECRETS: tuple[tuple[str, str], ...] = (
    (
        r"SecretStore|store.*(not found|not ready|does not exist)",
        "secrets.external.store names no SecretStore that is ready: kubectl get secretstore,clustersecretstore",
    ),
    (
        r"[Ss]ecret does not exist|could not get secret|cannot find secret|no such key|key .* does not exist",
        "the store has no such entry or property: correct remoteKey or properties under secrets.external",
    ),
)

REMEDIES = (*ADMISSION, *SCHEDULING, *IMAGES, *STORAGE, *CONTAINERS, *QUEUES, *SECRETS, *JOBS)

# What a pod that waits for a dataset needs when no Job of its release prepares one.
UNPREPARED = (
    "no Job of this release prepares it: set dataset.enabled: true, or correct global.dataset.name or "
    "global.storage.data; if another release prepares it, wait"
)

# What a container needs that was killed at its memory limit.
MEMORY = "raise resources.limits.memory, or lower batch.micro and data.workers (shared memory counts too)"

# Exit codes of the trainers -> what they mean.
EXIT_CODES: dict[int, str] = {
    1: "a bug, a full volume, or restarts without progress: the message or the log says which",
    2: "wrong configuration or input: another try would end the same",
    77: "the loss is NaN, infinite or too large: lower optimizer.lr, or see the samples in the run's failed.json",
    134: "aborted (SIGABRT), as NCCL does where a collective fails: see its log under logs/ in the run directory",
    137: "killed (SIGKILL): the node took it down or its grace period was over",
    138: "a rank hung or was lost: the operator tries again",
    139: "crashed (segmentation fault): see its log under logs/ in the run directory",
    200: "the storage did not answer: see the claim's server and the node's mount; the operator tries again",
    201: "a GPU failed, or lacks memory it had before: see nvidia-smi and dmesg on its node, cordon it if it keeps "
    "failing; the operator tries again",
    202: "an unknown error, tried once more: if it comes back it is a bug, and the run ends with 1",
    143: "stopped by SIGTERM after saving: it continues when the job runs again",
}


def remedy(text: str, among: tuple[tuple[str, str], ...] = REMEDIES) -> str:
    """Return the remedy for a message of Kubernetes, or nothing where none is known."""
    return next((answer for pattern, answer in among if re.search(pattern, text, re.S)), "")
