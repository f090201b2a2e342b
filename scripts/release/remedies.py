"""What Kubernetes says, and what a person can do about it."""

import re

# A pattern in the message of an event, a condition or a waiting container -> the remedy. The first that matches counts.
REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"violates PodSecurity.*init-pytorch",
        "the training-operator's own init container has no securityContext, so this namespace refuses the workers: "
        "start the operator with --pytorch-init-container-template-file (docs/operators.md), "
        "or set pytorchjob.form: elastic, or label the namespace pod-security.kubernetes.io/enforce=baseline",
    ),
    (r"violates PodSecurity", "this namespace refuses the pod: take out of values what the message names"),
    (
        r"exceeded quota",
        "the namespace's ResourceQuota is used up: ask for less under global.training.resources, or raise the quota",
    ),
    (r"[Ss]ecret \"?[\w.-]+\"? not found", "create that Secret in this namespace, or correct its name in values"),
    (r"couldn't find key \S+ in Secret", "add that key to the Secret"),
    (
        r"persistentvolumeclaim \"?[\w.-]+\"? not found",
        "create that claim, or correct existingClaim under global.storage",
    ),
    (r"configmap \"?[\w.-]+\"? not found", "the release's ConfigMap is gone: run helm upgrade again"),
    (r"had untolerated taint", "add a toleration for that taint under global.scheduling.tolerations"),
    (
        r"Insufficient nvidia.com/gpu",
        "no node has that many free GPUs: lower global.training.gpusPerNode, or wait for a free node",
    ),
    (
        r"Insufficient [\w./-]+",
        "no node has that much free: lower global.training.resources, or wait for a free node",
    ),
    (
        r"didn't match Pod's node affinity|node\(s\) didn't match",
        "no node carries the labels that global.scheduling.nodeSelector or affinity asks for",
    ),
    (r"unbound immediate PersistentVolumeClaims", "a claim is not bound: see its own line"),
    (
        r"no volume plugin|no persistent volumes available|[Ss]torage[Cc]lass.*not found",
        "name a StorageClass that exists under global.storage (kubectl get storageclass)",
    ),
    (
        r"ReadWriteMany|[Aa]ccess ?[Mm]odes?",
        "this StorageClass cannot share a volume between nodes: name one that can (NFS, CephFS, Filestore, FSx ...) "
        "under global.storage, or set accessModes: [ReadWriteOnce] for a run on one node",
    ),
    (
        r"ErrImageNeverPull|ImagePullBackOff|ErrImagePull|[Ff]ailed to pull image|InvalidImageName",
        "the image cannot be had: check global.image.registry and global.image.tag, push it (make push REGISTRY=...), "
        "and name its pull secret under global.image.pullSecrets",
    ),
    (r"[Nn]o space left on device", "the volume is full: make room on it, or raise size under global.storage"),
)

# Exit codes of the trainers -> what they mean.
EXIT_CODES: dict[int, str] = {
    137: "killed (SIGKILL): the node took it down or its grace period was over",
    138: "a rank hung or was lost: the operator tries again",
    143: "stopped by SIGTERM after saving: it continues when the job runs again",
}


def remedy(text: str) -> str:
    """Return the remedy for a message of Kubernetes, or nothing where none is known."""
    return next((answer for pattern, answer in REMEDIES if re.search(pattern, text, re.S)), "")
