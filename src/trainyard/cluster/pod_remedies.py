"""Kubernetes' messages about pods, their volumes and their containers, each with its remedy."""

# Pods that are there never change: what places or builds them holds for the next ones.
ANEW = "; pods that wait already keep the old values: delete them, and the operator recreates them"
# A claim's class and access modes never change, not even of one that is not bound.
REMADE = "; before the upgrade, if it holds nothing, kubectl delete pvc NAME: a claim's class and modes never change"

# A pattern in the message of an event, a condition or a waiting container -> the remedy. The first that matches counts.
ADMISSION: tuple[tuple[str, str], ...] = (
    (
        r"failed calling webhook",
        "a webhook of the cluster does not answer, or its certificate is wrong: see that its pods run (kubectl get "
        "validatingwebhookconfigurations,mutatingwebhookconfigurations); then it is tried again",
    ),
    (
        r"violates PodSecurity.*init-pytorch",
        "the training-operator's own init container has no securityContext, so this namespace refuses the workers: "
        "start the operator with --pytorch-init-container-template-file (docs/operators.md), "
        "or set pytorchjob.form: elastic, or label the namespace pod-security.kubernetes.io/enforce=baseline",
    ),
    (
        r"violates PodSecurity.*IPC_LOCK",
        "RDMA needs the capability IPC_LOCK: take global.training.rdma.resource out, or have the namespace labelled "
        "pod-security.kubernetes.io/enforce=privileged (baseline refuses it, too)",
    ),
    (
        r"security context constraint(?!.*(runAsUser|fsGroup|allowed group)).*capabilit",
        "RDMA needs the capability IPC_LOCK: have a SecurityContextConstraints that allows it given to "
        "global.serviceAccountName, or take global.training.rdma.resource out",
    ),
    (
        r"security context constraint|ValidatingAdmissionPolicy.*(runAs|fsGroup|\b[ug]id)",
        "the cluster says who pods run as: set global.storage.uid: platform, or uid and gid to numbers that the "
        "message allows (docs/clusters.md, OpenShift)",
    ),
    (
        r"RuntimeClass \S+ not found",
        "create that RuntimeClass, or correct runtimeClassName (kubectl get runtimeclass)",
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
    (
        r"admission webhook \S+ denied|ValidatingAdmissionPolicy",
        "a rule of the cluster refuses it: change in values what the message names",
    ),
)

# A message of the scheduler has a reason for each node, the first that kept the pod off it: taints, labels, free room,
# volumes, spread. Most clusters have nodes that no run is meant for, so a taint of theirs is the cause only where
# nothing else is. Kubernetes from 1.34.2 on does not name taints.
TOLERATE = "add a toleration for that taint under global.scheduling.tolerations" + ANEW
SCHEDULING: tuple[tuple[str, str], ...] = (
    (r"unbound immediate PersistentVolumeClaims", "a claim is not bound: see its own line"),
    (
        r"persistentvolumeclaim \"?[\w.-]+\"? not found",
        "create that claim, or correct existingClaim under global.storage",
    ),
    (
        r"persistentvolumeclaim \"?[\w.-]+\"? is being deleted",
        "the claim is being deleted: wait until it is gone, then install again, or name another under global.storage",
    ),
    (
        r"ReadWriteOncePod access mode",
        "another pod has this claim, and its mode lets one pod use it: set accessModes: [ReadWriteMany] under "
        "global.storage, on a new claim",
    ),
    (
        r"volume node affinity conflict|didn't match PersistentVolume's node affinity",
        "the volume belongs to other nodes than the pod may run on: correct global.scheduling.nodeSelector or "
        "affinity, or use a StorageClass that reaches all nodes" + ANEW,
    ),
    (
        r"bound to non-existent persistentvolume",
        "the claim's volume is gone: restore the volume, or name another claim under global.storage",
    ),
    (
        r"(?=.*(Insufficient |cannot allocate all claims)).*untolerated taint"
        r"(\(s\)| \{(?!node\.|node-role\.kubernetes\.io/(control-plane|master)))",
        "the nodes without a taint have no room: ask for less (global.training.gpusPerNode, resources), or wait for a "
        "free node; where those with a taint are meant (kubectl describe node), add a toleration for it under "
        "global.scheduling.tolerations" + ANEW,
    ),
    (r"untolerated taint \{(?!node\.|node-role\.kubernetes\.io/(control-plane|master))", TOLERATE),
    (
        r"untolerated taint \{node\.",
        "a node is not fit, as its taint says (not ready, unreachable, disk-pressure ...), and no other takes the pod: "
        "see to that node (kubectl describe node), wait for a free one, or ask for less",
    ),
    (
        r"Insufficient (nvidia\.com/|amd\.com/gpu|gpu\.intel\.com/)",
        "no node has that many free GPUs of this name: lower global.training.gpusPerNode, correct gpuResource (kubectl "
        "describe node lists what nodes offer), or wait for a free node",
    ),
    (
        r"Insufficient (rdma|[\w.-]+/)[\w.-]*",
        "no node offers that many of the device: check global.training.rdma.resource and count, and the device plugin "
        "(kubectl describe node)",
    ),
    (
        r"cannot allocate all claims|resourceclaim\S* .*not found|waiting for resource ?claim",
        "no node has the devices that global.training.resourceClaims asks for, or the claim or its template is not in "
        "this namespace: kubectl get resourceclaim,resourceclaimtemplate,deviceclass",
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
        r"didn't find available persistent volumes",
        "no free volume fits its claim: see kubectl get pv, or name a StorageClass that makes volumes under "
        "global.storage" + REMADE,
    ),
    (
        r"node\(s\) were unschedulable",
        "the nodes that fit are cordoned: wait until their maintenance is over, or kubectl uncordon NODE",
    ),
    (r"untolerated taint", TOLERATE),
    (
        r"[Pp]od ?[Gg]roup.*(not ready|unschedulable|less than minMember)|gang.*(not ready|unschedulable)",
        "gang scheduling waits for room for all pods: free nodes, or lower global.training.nodes",
    ),
)

STORAGE: tuple[tuple[str, str], ...] = (
    (
        r"[Ss]ecret \"?[\w./-]+\"? not found",
        "create that Secret in this namespace, or correct its name in values; the pod waits for it and then starts by "
        "itself (one that an operator creates has a line of its own)",
    ),
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
        "name a StorageClass that exists under global.storage (kubectl get storageclass)" + REMADE,
    ),
    (
        r"ReadWriteMany|[Aa]ccess ?[Mm]odes?|MULTI_NODE",
        "this StorageClass cannot share a volume between nodes: name one that can (NFS, CephFS, Filestore, FSx ...) "
        "under global.storage, or set accessModes: [ReadWriteOnce] for a run on one node" + REMADE,
    ),
    (r"[Nn]o space left on device", "the volume is full: make room on it, or raise size under global.storage"),
    (
        r"EmptyDir volume \"(tmp|home)\" exceeds the limit",
        "the pod wrote more to /tmp or its home than it may: raise global.storage.scratchSize, or write to a claim",
    ),
    (
        r"exceeded its local ephemeral storage limit|ephemeral local storage usage exceeds the total limit",
        "it wrote more beside the claims than its limit of ephemeral-storage: raise that in resources, or write less "
        "there",
    ),
    (
        r"exceeds? the (available|limit).*ephemeral|low on resource: ephemeral-storage|[Ee]phemeral.*exceeds",
        "the node's disk is full: add ephemeral-storage to resources, or write less beside the claims",
    ),
)

IMAGES: tuple[tuple[str, str], ...] = (
    (
        r"(?=.*(ErrImagePull|ImagePullBackOff|[Ff]ailed to pull)).*[Nn]o space left on device",
        "the node's disk has no room for the image: free it (kubectl describe node, DiskPressure), or choose nodes "
        "with larger disks by global.scheduling.nodeSelector" + ANEW,
    ),
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
        "the image is for other CPUs than this node's: build it for them, or choose nodes by nodeSelector",
    ),
    (
        r"ErrImageNeverPull|ImagePullBackOff|ErrImagePull|[Ff]ailed to pull image|InvalidImageName",
        "the image cannot be had: check global.image.registry and global.image.tag, push it (make push REGISTRY=...), "
        "and name its pull secret under global.image.pullSecrets",
    ),
)

CONTAINERS: tuple[tuple[str, str], ...] = (
    (
        r"NetworkPluginNotReady|cni plugin not initialized|[Ff]ailed to create pod sandbox.*(setup network|plugin)",
        "its node's network plugin gives the pod no network: a new node needs a minute; else see the plugin's pod on "
        "it (kubectl get pods -A -o wide), and whether addresses are left",
    ),
    (
        r"runAsNonRoot and image will run as root",
        "the image's user is root: build it with this project's Dockerfiles, or set global.storage.uid",
    ),
    (
        r"no runtime for .* is configured|unknown runtime|RuntimeHandler .* not supported",
        "the node's container runtime has no such handler: install it there (NVIDIA's container toolkit), or correct "
        "runtimeClassName",
    ),
    (
        r"does not support user namespaces",
        "that node's container runtime has no user namespaces: take hostUsers: false out, or keep the pods on "
        "nodes that have them",
    ),
    (
        r"Cannot enforce AppArmor",
        "that node has no AppArmor, or lacks the profile: take appArmorProfile out of securityContext, or keep the "
        "pods on nodes that have it",
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
        r"[Pp]reempt(?!ed to accommodate a workload|or path|ee path|ion)",  # the scheduler always tells of preemption
        "a pod of higher priority took its place: set global.scheduling.priorityClassName, or wait",
    ),
    (
        r"Predicate \w+ failed|UnexpectedAdmissionError",
        "its node refused it though the scheduler had chosen that node, as one does that has just come back: its "
        "operator makes another pod, but mpi-operator no other worker until you kubectl delete pod NAME",
    ),
    (
        r"[Nn]ode\S* (lost|is not ready|unreachable)|NodeLost|\b(Node)?NotReady\b",
        "its node is gone: it is recreated elsewhere; a pod that stays Terminating goes with kubectl delete pod "
        "--force, once its machine is off",
    ),
    (
        r"were killed (before training began|within \d+ minutes)",
        "raise global.training.resources.limits.memory, unless its node was taken down each time",
    ),
    (r"its name does not resolve", "the named pod has not started: see its own line"),
    (
        r"cannot be reached \((no answer|timed out|it accepts)|: (no answer|it accepts)",
        "a NetworkPolicy, mesh or firewall keeps the pods apart: let them reach each other on all ports",
    ),
    (
        r"cannot be reached|: connection refused|rendezvous port",
        "the named pod runs, but does not listen: see its log; all pods need one image and one "
        "global.training.peers.port",
    ),
    (
        r"alive by its file, but it no longer answers over the network",
        "the network between its node and another is cut: see whether the nodes reach each other; the operator tries "
        "again",
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
        r"prepare: waiting: .*(proxy|407)",
        "correct the Secret that dataset.envFrom names, then delete this pod, which its Job recreates: environment is "
        "read when a pod starts",
    ),
    (r"prepare: waiting: ", "fix what it says; then it continues by itself, without an upgrade"),
    (
        r"a Secret that an operator creates",
        "see the line of its ExternalSecret; when the Secret is there, the pod continues by itself",
    ),
    (
        r"its Secret has not been made, or lacks the key",
        "see the line of its ExternalSecret; a longer secrets.external.wait if the Secret is only late",
    ),
    (
        r"nobody has prepared",
        "see what the dataset's Job waits for (trainyard why of its release); when the dataset is complete, delete "
        "this job and upgrade",
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
