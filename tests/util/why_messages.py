"""What Kubernetes and the operators say, and a part of the remedy that trainyard why answers with."""

# The messages are those of Kubernetes 1.34, training-operator 1.9, mpi-operator 0.8, containerd 2, Kueue 0.18.
NOT_CREATED = {
    "quota": (
        'Error creating: pods "demo-x-worker-0" is forbidden: exceeded quota: team, requested: requests.memory=32Gi, '
        "used: requests.memory=0, limited: requests.memory=16Gi",
        "ask for less under global.training.resources",
    ),
    "quota of limits": (
        'Error creating: pods "demo-x-worker-0" is forbidden: failed quota: team: must specify limits.cpu for: pytorch',
        "name them under resources.requests and limits",
    ),
    "limit range": (
        'Error creating: pods "demo-x-worker-0" is forbidden: maximum memory usage per Container is 16Gi, '
        "but limit is 32Gi",
        "LimitRange",
    ),
    "stock init container": (
        'pods "demo-x-worker-0" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation '
        '!= false (container "init-pytorch" must set securityContext.allowPrivilegeEscalation=false)',
        "pytorchjob.form: elastic",
    ),
    "RDMA in restricted": (
        'pods "demo-x-worker-0" is forbidden: violates PodSecurity "restricted:latest": unrestricted capabilities '
        '(container "pytorch" must not include "IPC_LOCK" in securityContext.capabilities.add)',
        "take global.training.rdma.resource out",
    ),
    "service account": (
        'pods "demo-x-worker-0" is forbidden: error looking up service account vision/training: serviceaccount '
        '"training" not found',
        "global.serviceAccountName",
    ),
    "priority class": (
        'pods "demo-x-worker-0" is forbidden: no PriorityClass with name high was found',
        "global.scheduling.priorityClassName",
    ),
    "request over limit": (
        'Pod "demo-x-worker-0" is invalid: spec.containers[0].resources.requests: Invalid value: "3": must be less '
        "than or equal to cpu limit of 2",
        "global.training.resources",
    ),
    "users of OpenShift": (
        'pods "demo-x-worker-0" is forbidden: unable to validate against any security context constraint: [provider '
        "restricted-v2: .spec.securityContext.fsGroup: Invalid value: []int64{1000}: 1000 is not an allowed group, "
        "provider restricted-v2: .containers[0].runAsUser: Invalid value: 1000: must be in the ranges: [1000730000, "
        "1000739999]]",
        "set global.storage.uid: platform",
    ),
    "capabilities of OpenShift": (
        'pods "demo-x-worker-0" is forbidden: unable to validate against any security context constraint: [provider '
        'restricted-v2: .containers[0].capabilities.add: Invalid value: "IPC_LOCK": capability may not be added]',
        "have a SecurityContextConstraints that allows it",
    ),
    "users by a policy": (
        "pods \"demo-x-worker-0\" is forbidden: ValidatingAdmissionPolicy 'users' with binding 'users' denied request: "
        "runAsUser must be in 1000730000-1000739999",
        "set global.storage.uid: platform",
    ),
    "another policy": (
        "pods \"demo-x-worker-0\" is forbidden: ValidatingAdmissionPolicy 'teams' with binding 'teams' denied request: "
        "no team label",
        "what the message names",
    ),
    "runtime class": (
        'pods "demo-x-worker-0" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
        "create that RuntimeClass",
    ),
    "webhook that does not answer": (
        'Error creating: Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook: '
        'Post "https://rules.default.svc:443/pods?timeout=10s": dial tcp 10.96.1.9:443: connect: connection refused',
        "a webhook of the cluster does not answer",
    ),
    "webhook": ('admission webhook "rules.example.com" denied the request: no team label', "what the message names"),
}

NOT_PLACED = {
    "GPUs": ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "lower global.training.gpusPerNode"),
    "slices of GPUs": (
        "0/3 nodes are available: 3 Insufficient nvidia.com/mig-3g.40gb.",
        "correct gpuResource (kubectl describe node",
    ),
    "claims of devices": ("0/3 nodes are available: 3 cannot allocate all claims.", "global.training.resourceClaims"),
    "device": ("0/3 nodes are available: 3 Insufficient rdma/ib.", "global.training.rdma.resource"),
    "memory": ("0/3 nodes are available: 3 Insufficient memory.", "lower global.training.resources"),
    "taint": ("0/3 nodes are available: 3 node(s) had untolerated taint {gpu: yes}.", "global.scheduling.tolerations"),
    "taint of nodes that no run is meant for": (
        "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
        "2 Insufficient nvidia.com/gpu.",
        "wait for a free node",
    ),
    "taint of the only node": (
        "0/1 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }.",
        "global.scheduling.tolerations",
    ),
    "taint of a lost node": (
        "0/3 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, "
        "2 Insufficient nvidia.com/gpu.",
        "a node is not fit, as its taint says",
    ),
    "taint of some nodes": (
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {team: red}.",
        "the nodes without a taint have no room",
    ),
    "taint without a name": (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu.",
        "the nodes without a taint have no room",
    ),
    "taint without a name beside labels": (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node "
        "affinity/selector.",
        "global.scheduling.nodeSelector or affinity",
    ),
    "cordoned": ("0/3 nodes are available: 3 node(s) were unschedulable.", "kubectl uncordon NODE"),
    "labels": (
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
        "global.scheduling.nodeSelector or affinity",
    ),
    "other pods": (
        "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.",
        "global.scheduling.affinity to other pods",
    ),
    "spread": (
        "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints.",
        "global.scheduling.topologySpreadConstraints",
    ),
    "volume elsewhere": (
        "0/3 nodes are available: 3 node(s) had volume node affinity conflict.",
        "the volume belongs to other nodes",
    ),
    "volume elsewhere, from Kubernetes 1.33 on": (
        "0/3 nodes are available: 3 node(s) didn't match PersistentVolume's node affinity.",
        "the volume belongs to other nodes",
    ),
    "volume that is gone": (
        '0/3 nodes are available: persistentvolumeclaim "old-data" bound to non-existent persistentvolume "pv-1".',
        "restore the volume",
    ),
    "no free volume": (
        "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind. preemption: 0/3 nodes "
        "are available: 3 Preemption is not helpful for scheduling.",
        "no free volume fits its claim",
    ),
    "one pod's volume": (
        "0/1 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod "
        "access mode.",
        "accessModes: [ReadWriteMany]",
    ),
    "claim": ('0/1 nodes are available: persistentvolumeclaim "nowhere" not found.', "correct existingClaim"),
    "unbound": (
        "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "a claim is not bound: see its own line",
    ),
    "gang": ("pod group is not ready, 2 Pending, 3 minAvailable", "gang scheduling waits for room"),
}

NOT_STARTED = {
    "secret": (
        'MountVolume.SetUp failed for volume "trainyard" : secret "nowhere" not found',
        "create that Secret in this namespace",
    ),
    "key of a secret": (
        'MountVolume.SetUp failed for volume "trainyard" : references non-existent secret key: WANDB_API_KEY',
        "add that key to the Secret",
    ),
    "settings": (
        'MountVolume.SetUp failed for volume "trainyard" : configmap "demo-x-run" not found',
        "run helm upgrade again",
    ),
    "one node's volume": (
        'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) demo-x-master-0',
        "accessModes: [ReadWriteMany]",
    ),
    "folder under root squash": (
        'Error: failed to create subPath directory for volumeMount "data" of container "pytorch"',
        "make it by hand",
    ),
    "export": (
        'MountVolume.SetUp failed for volume "nfs" : mount failed: exit status 32 mount.nfs: access denied by server',
        "check the export's rules",
    ),
    "handler of a runtime": (
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "
        '"nvidia" is configured',
        "the node's container runtime has no such handler",
    ),
    "template of a claim": (
        'PodResourceClaim gpu: failed to create ResourceClaim: resourceclaimtemplate.resource.k8s.io "h100" not found',
        "kubectl get resourceclaim,resourceclaimtemplate",
    ),
    "network of a new node": (
        "network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
        "message:Network plugin returns error: cni plugin not initialized",
        "a new node needs a minute",
    ),
    "network of a sandbox": (
        'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "1": '
        'plugin type="calico" failed (add): Get "https://10.96.0.1:443": dial tcp 10.96.0.1:443: connect: connection '
        "refused",
        "its node's network plugin gives the pod no network",
    ),
    "pull secret": (
        "Unable to retrieve some image pull secrets (regcred); attempting to pull the image may not succeed.",
        "a Secret of global.image.pullSecrets is not in this namespace",
    ),
}

IMAGES = {
    "denied": (
        "ImagePullBackOff",
        'Back-off pulling image "r/i:1": ErrImagePull: failed to authorize: unexpected status: 401 Unauthorized',
        "name a pull secret under global.image.pullSecrets",
    ),
    "unknown tag": (
        "ErrImagePull",
        'rpc error: failed to pull and unpack image "r/i:1": r/i:1: not found',
        "make push",
    ),
    "no registry": (
        "ErrImagePull",
        'failed to pull image "r/i:1": dial tcp: lookup registry.example.com: no such host',
        "the nodes do not reach the registry",
    ),
    "no room on the node": (
        "ErrImagePull",
        'failed to pull and unpack image "r/i:1": failed to extract layer sha256:1: write /var/lib/containerd/1: no '
        "space left on device: unknown",
        "the node's disk has no room for the image",
    ),
    "certificate": (
        "ErrImagePull",
        'failed to pull image "r/i:1": tls: failed to verify certificate: x509: certificate signed by '
        "unknown authority",
        "the nodes do not trust the registry's certificate",
    ),
    "never": ("ErrImageNeverPull", 'Container image "r/i:1" is not present with pull policy of Never', "make push"),
    "name": ("InvalidImageName", 'Failed to apply default image tag "r//i"', "check global.image.registry"),
    "root": (
        "CreateContainerConfigError",
        "container has runAsNonRoot and image will run as root",
        "build it with this project's Dockerfiles",
    ),
    "no program": (
        "RunContainerError",
        'failed to create containerd task: exec: "python": executable file not found in $PATH',
        "the image lacks the program",
    ),
}

PENDING = {
    "no such class": ('storageclass.storage.k8s.io "nowhere" not found', "name a StorageClass that exists"),
    "class without RWX": (
        'failed to provision volume with StorageClass "ebs": rpc error: code = InvalidArgument desc = Volume '
        "capabilities MULTI_NODE_MULTI_WRITER not supported",
        "this StorageClass cannot share a volume between nodes",
    ),
    "quota": (
        'persistentvolumeclaims "demo-data" is forbidden: exceeded quota: team, requested: requests.storage=300Gi',
        "lower size under global.storage",
    ),
    "volume of another": ('volume "nfs" already bound to a different claim.', "global.storage.*.volumeName"),
    "anything else": (
        "rpc error: code = Internal desc = strange",
        "the StorageClass could not make a ReadWriteMany volume",
    ),
}

FURTHER = {
    "did not arrive: rank 1 on demo-x-worker-0, pid 14: alive by its file, but it no longer answers over the network": (
        "see whether the nodes reach each other"
    ),
    "demo-x-master-0 runs, but port 23400 cannot be reached (it accepts, but says nothing for 25 s): a NetworkPolicy": (
        "let them reach each other on all ports"
    ),
    "4 starts of this pod in a row were killed before training began, as the kernel does where a container's memory "
    "limit is too small": "raise global.training.resources.limits.memory",
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes': "take out of values",
    'persistentvolumeclaim "demo-data" is being deleted': "wait until it is gone",
    'Failed to pull image "r/i:1": no match for platform in manifest': "the image is for other CPUs",
    "Unable to attach or mount volumes: timed out waiting for the condition": "the storage driver's pods",
    "the ClusterQueue gpus is inactive": "ask who runs Kueue",
    "waiting for 1 of 1 peers (x-worker-0: its name does not resolve: the pod has not started)": "see its own line",
    "NodeLost: Node vm-1 which was running pod is unresponsive": "kubectl delete pod --force",
    "Preempted in order to admit critical pod": "priorityClassName",
    "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate": "refused it",
    "UnexpectedAdmissionError: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
    "nvidia.com/gpu, which is unexpected": "has just come back",
    "error: /dev/shm has 8.00 GiB instead of 16.00 GiB: mount": "lower global.training.shmSize",
    "/results is full: free space or enlarge the claim": "remove what is not needed from that claim",
    "/results has 9.0 MiB free, and 256.0 MiB are wanted: free space or enlarge": "StorageClass allows expansion",
    "/etc/trainyard/secrets/wandb/WANDB_API_KEY did not appear within 600 s: its Secret has not been made, or lacks "
    "the key": "a longer secrets.external.wait",
    "preflight: waiting for /etc/WANDB_API_KEY, a Secret that an operator creates, 590 s left": "its ExternalSecret",
    "prepare: waiting: https://data.example.com/pets.zip was refused: the server answered 401 Unauthorized; check that "
    "its signature has not expired (retried in 10 s, for at most 1440 min)": "without an upgrade",
    "prepare: waiting: https://data.example.com/pets.zip cannot be asked for: the proxy wants a user name and password "
    "(retried in 10 s, for at most 1440 min)": "delete this pod",
    "/data/imagenet/manifest.json did not appear within 600 s (no shard is finished yet)": "dataset.enabled: true",
    "/data/imagenet/train/shard-00000.tar has 5 bytes instead of 9 (1 wrong in all)": "only what is damaged is made",
    "/data/imagenet/manifest.json is not a manifest (not a JSON object)": "the data on the claim is damaged",
    "The node was low on resource: memory.": "raise global.training.resources.requests",
    "The node was low on resource: ephemeral-storage.": "the node's disk is full",
    'Container pytorch exceeded its local ephemeral storage limit "10Gi".': "its limit of ephemeral-storage",
    "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. ": "its limit of ephemeral-storage",
    "can't set `spec.hostUsers: false`, runtime does not support user namespaces": "take hostUsers: false out",
    "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host": "take appArmorProfile out",
    'Evicted: Usage of EmptyDir volume "tmp" exceeds the limit "20Gi".': "raise global.storage.scratchSize",
    "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor h200, 8 needed": "no room",
    "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor h200, previously considered podsets "
    "requests (0) + current podset request (9) > maximum capacity (8)": "more than its queue ever has",
    "couldn't assign flavors to pod set main: resource rdma/ib unavailable in ClusterQueue": "its coveredResources",
    "couldn't assign flavors to pod set main: flavor h200 doesn't match node affinity": "rule out every flavor's nodes",
    "Workload namespace doesn't match ClusterQueue selector": "have its namespaceSelector changed",
    "LocalQueue q doesn't exist": "global.scheduling.queue",
    "no WorkloadPriorityClass is named urgent": "global.scheduling.queuePriority",
    "Preempted to accommodate a workload (UID: u, JobUID: j) due to prioritization in the ClusterQueue; preemptor "
    "path: /small; preemptee path: /small (pytorchjob/deadline-x)": "it has saved",
    "TrainJob resources reconciliation failed: not found specified TrainingRuntime: "
    'TrainingRuntime.trainer.kubeflow.org "demo" not found': "correct runtimeRef",
    "TrainJob resources reconciliation failed: no matches for kind JobSet": "is JobSet installed",
    "Exceeded the PodsReady timeout vision/demo-x; couldn't assign flavors to pod set worker: none": "waitForPodsReady",
    "mpi-operator: not resumed": "kubectl apply -f examples/kueue/mpi-operator.yaml",
    "nobody has prepared /data/imagenet for 900 s (no shard is finished yet), and its preparation may wait": "upgrade",
    'could not get ClusterSecretStore "vault", not found': "secrets.external.store",
    "error retrieving secret: Secret does not exist": "correct remoteKey",
    "PodFailurePolicy exit code 2": "not cured by another try",
    "Job demo-x has failed because it was active longer than specified deadline": "activeDeadlineSeconds",
    "Job demo-x has failed because it has reached the specified backoff limit": "backoffLimit",
    "no persistent volumes available for this claim and no storage class is set": "name a StorageClass",
}
