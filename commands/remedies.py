"""What Kubernetes says, and what a person can do about it."""

import re

# Pods that are there never change: what places or builds them holds for the next ones.
ANEW = "; pods that wait already keep the old values: delete them, and the operator makes them anew"

# A pattern in the message of an event, a condition or a waiting container -> the remedy. The first that matches counts.
ADMISSION: tuple[tuple[str, str], ...] = (
    (
        r"violates PodSecurity.*init-pytorch",
        "the training-operator's own init container has no securityContext, so this namespace refuses the workers: "
        "start the operator with --pytorch-init-container-template-file (docs/operators.md), "
        "or set pytorchjob.form: elastic, or label the namespace pod-security.kubernetes.io/enforce=baseline",
    ),
    (
        r"violates PodSecurity.*IPC_LOCK",
        "RDMA needs the capability IPC_LOCK: take global.training.rdma.resource out, or have the namespace labelled "
        "pod-security.kubernetes.io/enforce=baseline or privileged",
    ),
    (r"violates PodSecurity", "this namespace refuses the pod: take out of values what the message names"),
    (
        r"failed quota: \S+: must specify",
        "the namespace's ResourceQuota counts these: name them under resources.requests and limits of global.training, "
        "dataset and mpijob.launcher",
    ),
    (
        r"exceeded quota.*requests\.storage|exceeded quota.*persistentvolumeclaims",
        "the namespace's quota of storage is used up: lower size under global.storage, or raise the quota",
    ),
    (
        r"exceeded quota",
        "the namespace's ResourceQuota is used up: ask for less under global.training.resources, or raise the quota",
    ),
    (
        r"(maximum|minimum) (cpu|memory) usage per (Container|Pod)|must be less than or equal to \S+ limit",
        "the namespace's LimitRange, or a limit below its request, refuses the resources: correct them under "
        "global.training.resources (kubectl get limitrange)",
    ),
    (r"serviceaccount \"?[\w.-]+\"? not found", "create that ServiceAccount, or correct global.serviceAccountName"),
    (
        r"no PriorityClass with name",
        "name a PriorityClass that exists under global.scheduling.priorityClassName (kubectl get priorityclass)",
    ),
    (r"admission webhook \S+ denied", "a rule of the cluster refuses it: change in values what the message names"),
)

SCHEDULING: tuple[tuple[str, str], ...] = (
    (r"unbound immediate PersistentVolumeClaims", "a claim is not bound: see its own line"),
    (
        r"persistentvolumeclaim \"?[\w.-]+\"? not found",
        "create that claim, or correct existingClaim under global.storage",
    ),
    (
        r"persistentvolumeclaim \"?[\w.-]+\"? is being deleted",
        "the claim is being deleted: wait until it is gone, then install anew, or name another under global.storage",
    ),
    (
        r"ReadWriteOncePod access mode",
        "another pod has this claim, and its mode lets one pod use it: set accessModes: [ReadWriteMany] under "
        "global.storage, on a new claim",
    ),
    (
        r"volume node affinity conflict",
        "the volume belongs to other nodes than the pod may run on: correct global.scheduling.nodeSelector or "
        "affinity, or use a StorageClass that reaches all nodes" + ANEW,
    ),
    (r"had untolerated taint", "add a toleration for that taint under global.scheduling.tolerations" + ANEW),
    (
        r"Insufficient nvidia.com/gpu",
        "no node has that many free GPUs: lower global.training.gpusPerNode, or wait for a free node",
    ),
    (
        r"Insufficient (rdma|[\w.-]+/)[\w.-]*",
        "no node offers that many of the device: check global.training.rdma.resource and count, and the device plugin "
        "(kubectl describe node)",
    ),
    (
        r"Insufficient [\w./-]+|Too many pods",
        "no node has that much free: lower global.training.resources, or wait for a free node",
    ),
    (
        r"didn't match pod topology spread",
        "there are too few nodes for global.scheduling.topologySpreadConstraints: relax it, or set whenUnsatisfiable: "
        "ScheduleAnyway" + ANEW,
    ),
    (
        r"didn't match pod (anti-)?affinity",
        "no node fits global.scheduling.affinity to other pods: relax it" + ANEW,
    ),
    (
        r"didn't match Pod's node affinity|node\(s\) didn't match",
        "no node carries the labels that global.scheduling.nodeSelector or affinity asks for" + ANEW,
    ),
    (
        r"[Pp]od ?[Gg]roup.*(not ready|unschedulable|less than minMember)|gang.*(not ready|unschedulable)",
        "gang scheduling waits for room for all pods: free nodes, or lower global.training.nodes",
    ),
)

STORAGE: tuple[tuple[str, str], ...] = (
    (r"[Ss]ecret \"?[\w./-]+\"? not found", "create that Secret in this namespace, or correct its name in values"),
    (r"couldn't find key \S+ in Secret|references non-existent secret key", "add that key to the Secret"),
    (r"configmap \"?[\w./-]+\"? not found", "the release's ConfigMap is gone: run helm upgrade again"),
    (
        r"Multi-Attach error|already (exclusively )?attached to one node",
        "this volume can be attached to one node, and pods run on several: set accessModes: [ReadWriteMany] with a "
        "StorageClass that can, or global.training.nodes: 1",
    ),
    (
        r"failed to (create|prepare) subPath",
        "the folder of global.storage.*.subPath cannot be made by the kubelet (NFS with root squash): make it by hand "
        "and give it to global.storage.uid and gid",
    ),
    (
        r"MountVolume\S* failed.*(access denied|[Pp]ermission denied|mount failed)",
        "the node may not mount the volume: check the export's rules and the driver of its StorageClass",
    ),
    (
        r"[Uu]nable to attach or mount volumes|timed out waiting for the condition",
        "the volume is not attached in time: see the claim's line and the storage driver's pods",
    ),
    (
        r"already bound to a different claim|volume \"?[\w.-]+\"? not found",
        "global.storage.*.volumeName names a volume that another claim has, or none: kubectl get pv",
    ),
    (
        r"no volume plugin|no persistent volumes available|[Ss]torage[Cc]lass.*not found",
        "name a StorageClass that exists under global.storage (kubectl get storageclass)",
    ),
    (
        r"ReadWriteMany|[Aa]ccess ?[Mm]odes?|MULTI_NODE",
        "this StorageClass cannot share a volume between nodes: name one that can (NFS, CephFS, Filestore, FSx ...) "
        "under global.storage, or set accessModes: [ReadWriteOnce] for a run on one node",
    ),
    (r"[Nn]o space left on device", "the volume is full: make room on it, or raise size under global.storage"),
    (
        r"exceeds? the (available|limit).*ephemeral|low on resource: ephemeral-storage|[Ee]phemeral.*exceeds",
        "the node's disk is full: add ephemeral-storage to resources, or write less beside the claims",
    ),
)

IMAGES: tuple[tuple[str, str], ...] = (
    (
        r"[Uu]nable to retrieve some image pull secrets",
        "a Secret of global.image.pullSecrets is not in this namespace: create it, or correct its name",
    ),
    (
        r"(?=.*[Pp]ull).*(401 Unauthorized|403 Forbidden|access denied|authorization failed|insufficient_scope)",
        "the registry wants to know who asks: name a pull secret under global.image.pullSecrets, or correct it",
    ),
    (
        r"(?=.*[Pp]ull).*x509",
        "the nodes do not trust the registry's certificate: give its CA to their container runtime",
    ),
    (
        r"pull.*(no such host|connection refused|i/o timeout|no route to host)",
        "the nodes do not reach the registry: check global.image.registry, and proxy and name resolution of the nodes",
    ),
    (
        r"no match for platform|exec format error|exec user process",
        "the image is for other processors than this node's: build it for them, or choose nodes by nodeSelector",
    ),
    (
        r"ErrImageNeverPull|ImagePullBackOff|ErrImagePull|[Ff]ailed to pull image|InvalidImageName",
        "the image cannot be had: check global.image.registry and global.image.tag, push it (make push REGISTRY=...), "
        "and name its pull secret under global.image.pullSecrets",
    ),
)

CONTAINERS: tuple[tuple[str, str], ...] = (
    (
        r"runAsNonRoot and image will run as root",
        "the image's user is root: build it with this project's Dockerfiles, or set global.storage.uid",
    ),
    (
        r"executable file not found|no such file or directory: unknown",
        "the image lacks the program: use the images that this project's Dockerfiles build",
    ),
    (
        r"low on resource: memory",
        "the node ran out of memory and the pod used more than it requested: raise global.training.resources.requests",
    ),
    (
        r"[Pp]reempt(?!ed to accommodate a workload|or path|ee path)",
        "a pod of higher priority took its place: set global.scheduling.priorityClassName, or wait",
    ),
    (r"[Nn]ode\S* (lost|is not ready|unreachable)|NodeLost|NotReady", "its node is gone: it is made anew elsewhere; "
     "a pod that stays Terminating goes with kubectl delete pod --force"),
    (r"its name does not resolve", "the named pod has not started: see its own line"),
    (
        r"cannot be reached \((no answer|timed out)|: no answer",
        "a NetworkPolicy, mesh or firewall keeps the pods apart: let them reach each other on all ports",
    ),
    (
        r"cannot be reached|: connection refused|rendezvous port",
        "the named pod runs, but does not listen: see its log; all pods need one image and one "
        "global.training.peers.port",
    ),
    (r"would fall back to TCP|turns RDMA off|NCCL uses TCP", "RDMA does not work here: do what the message says"),
    (
        r"/dev/shm has .* instead of",
        "lower global.training.shmSize, or give the pod's memory limit and the node that much memory",
    ),
    (
        r"(is full|are wanted): free space",
        "remove what is not needed from that claim, or enlarge it: size under global.storage, where its StorageClass "
        "allows expansion",
    ),
    (
        r"nobody has prepared",
        "see what the dataset's Job waits for (scripts/why of its release); when the dataset is complete, delete this "
        "job and upgrade",
    ),
    (
        r"manifest\.json did not appear",
        "have the dataset prepared (dataset.enabled: true), or correct global.dataset.name; a longer "
        "global.dataset.wait if it is being prepared",
    ),
    (
        r"\d wrong in all\)|is not a manifest",
        "the data on the claim is damaged: delete the dataset's Job and the failed job, and upgrade with "
        "dataset.enabled: true; only what is damaged is made again",
    ),
)  # fmt: skip

JOBS: tuple[tuple[str, str], ...] = (
    (
        r"active longer than specified deadline|DeadlineExceeded",
        "activeDeadlineSeconds is over: raise it (runPolicy, or dataset.activeDeadlineSeconds) and upgrade; "
        "the run continues from its last checkpoint",
    ),
    (
        r"backoff limit|BackoffLimitExceeded|ReachedMaxRestarts",
        "it failed as often as backoffLimit allows: see its pods below for the cause, mend it, and upgrade",
    ),
    (
        r"TrainJob resources reconciliation failed",
        "Kubeflow Trainer cannot make its parts: is JobSet installed, and do the versions fit (docs/operators.md)?",
    ),
    (r"PodFailurePolicy|FailJobSet", "what it failed on is not cured by another try: see its pods below"),
)

QUEUES: tuple[tuple[str, str], ...] = (
    (
        r"Preempted to accommodate",
        "a job of higher priority has its place; it has saved, and goes on by itself when there is room "
        "(global.scheduling.queuePriority says who comes first)",
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

# Exit codes of the trainers -> what they mean.
EXIT_CODES: dict[int, str] = {
    2: "wrong configuration or input: another try would end the same",
    77: "the loss is not a number: lower optimizer.lr, or see failed.json in the run directory for the samples",
    137: "killed (SIGKILL): the node took it down or its grace period was over",
    138: "a rank hung or was lost: the operator tries again",
    139: "crashed (segmentation fault): see its log under logs/ in the run directory",
    143: "stopped by SIGTERM after saving: it continues when the job runs again",
}


def remedy(text: str, among: tuple[tuple[str, str], ...] = REMEDIES) -> str:
    """Return the remedy for a message of Kubernetes, or nothing where none is known."""
    return next((answer for pattern, answer in among if re.search(pattern, text, re.S)), "")
