"""Typical mistakes in values, and what the chart says of each: a part of it that names what to write."""

from typing import NamedTuple

from . import helm

TRAINING, BATCH = "global.training", "global.training.config.batch"
BASE: helm.Values = {
    "global": {
        "image": {"registry": "registry.example.com/team", "tag": "0.1.0"},
        "training": {"nodes": 2, "gpusPerNode": 8},
    },
    "dataset": {"source": {"url": "https://data.example.com/pets.zip"}},
}


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
GROUP = helm.at(f"{TRAINING}.podAnnotations", {"kueue.x-k8s.io/podset-group-name": "ring"})


class Mistake(NamedTuple):
    """Values merged over the base (None: no values), options of Helm, and the expected message."""

    values: helm.Values | None
    said: str
    options: tuple[str, ...] = ()


def volumes(name: str, path: str) -> helm.Values:
    """Values with a volume and its mount."""
    mount = helm.at(f"{TRAINING}.extraVolumeMounts", [{"name": name, "mountPath": path}])
    return helm.merged(helm.at(f"{TRAINING}.extraVolumes", [{"name": name, "emptyDir": {}}]), mount)


MISTAKES = {
    "nothing at all": Mistake(None, "global.training.nodes (pods that train) and global.training.gpusPerNode"),
    "registry with a scheme": Mistake(
        helm.at("global.image.registry", "https://registry.example.com/team"), "leave out the scheme"
    ),
    "an image as registry": Mistake(
        helm.at("global.image.registry", "registry.example.com/team/trainyard-pytorch:1.0"), "write its registry and"
    ),
    "a mount at /tmp": Mistake(volumes("scratch", "/tmp"), "choose another path"),
    "a mount without its volume": Mistake(
        helm.at(f"{TRAINING}.extraVolumeMounts", [{"name": "cache", "mountPath": "/cache"}]),
        "add it to global.training.extraVolumes",
    ),
    "a volume called data": Mistake(volumes("data", "/scratch"), "the pod has one of that name already"),
    "operator: Exist": Mistake(
        helm.at("global.scheduling.tolerations", [{"key": "nvidia.com/gpu", "operator": "Exist"}]),
        "value must be one of '', 'Exists', 'Equal'",
    ),
    "a password in the URL": Mistake(
        helm.at("dataset.source.url", "https://ada:secret@data.example.com/pets.zip"),
        "name a Secret with the key netrc in global.secrets.http.existingSecret",
    ),
    "a signature in the URL": Mistake(
        helm.at("dataset.source.url", "https://data.example.com/pets.zip?X-Amz-Expires=600&X-Amz-Signature=0123"),
        "the whole of it as the key url of the Secret in global.secrets.http.existingSecret",
    ),
    "a signature in the weights' address": Mistake(
        helm.at(f"{TRAINING}.config.model.pretrained", "https://data.example.com/net-0123abcd.pth?sig=0123"),
        "the whole of it as the key weights-url of the Secret in global.secrets.http.existingSecret",
    ),
    "a password in the weights' mirror": Mistake(
        helm.at(f"{TRAINING}.config.model.weights_mirror", "https://ada:secret@mirror.example.com"),
        "global.training.config.model.weights_mirror holds a user name or password",
    ),
    "a SHA-256 that is none": Mistake(
        helm.at("dataset.source.sha256", "sha256:0123"), "write 64 hexadecimal digits, as sha256sum prints them"
    ),
    "both batches": Mistake(helm.at(BATCH, {"global": 256, "per_process": 32}), "keep global"),
    "a claim and its size": Mistake(
        helm.at("global.storage.data", {"existingClaim": "imagenet", "size": "300Gi"}), "leave size out"
    ),
    "memory: 64GB": Mistake(
        helm.at(f"{TRAINING}.resources.limits.memory", "64GB"), "write a quantity of bytes, such as 16Gi (G, not GB)"
    ),
    "env as a map": Mistake(
        helm.at(f"{TRAINING}.env", {"NCCL_DEBUG": "INFO"}), "write a list, such as [{name: NCCL_DEBUG, value: INFO}]"
    ),
    "tolerations as a map": Mistake(
        helm.at("global.scheduling.tolerations", {"key": "gpu"}), "write a list, such as [{key: nvidia.com/gpu"
    ),
    "a tag of digits": Mistake({}, "use --set-string", ("--set", "global.image.tag=20260101")),
    "a rate in words": Mistake(
        {}, 'optimizer.lr is a text ("high"): write a number', ("--set", "global.training.config.optimizer.lr=high")
    ),
    "half a step": Mistake(
        {}, "max_steps is 1.5: write a whole number", ("--set", "global.training.config.max_steps=1.5")
    ),
    "nodes in quotes": Mistake(helm.at(f"{TRAINING}.nodes", "2"), "write it without quotes"),
    "half a node": Mistake(helm.at(f"{TRAINING}.nodes", 1.5), "write a whole number"),
    "a group in quotes": Mistake(
        helm.at("global.storage.supplementalGroups", ["3000"]),
        "at '/global/storage/supplementalGroups/0': got string, want integer",
    ),
    "kind: s3": Mistake(
        helm.at("dataset.source", {"kind": "s3", "url": "s3://bucket/pets.zip"}), "did you mean objectstore?"
    ),
    "another address than the kind's": Mistake(
        helm.at("dataset.source", {"kind": "http", "url": "s3://bucket/pets.zip"}), "leave the kind out, or correct"
    ),
    "two addresses": Mistake(
        helm.at("dataset.source.competition", "imagenet-object-localization-challenge"), "keep the one that"
    ),
    "a kind without its address": Mistake(
        helm.at("dataset.source", {"kind": "http", "url": ""}), "set dataset.source.url"
    ),
    "an unknown form": Mistake(helm.at("pytorchjob.form", "gang"), "value must be one of 'master', 'elastic'"),
    "an unknown operator": Mistake(helm.at(f"{TRAINING}.operator", "horovod"), "did you mean mpijob?"),
    "a misspelt key": Mistake(helm.at(f"{TRAINING}.gpuPerNode", 8), "did you mean gpusPerNode?"),
    "a key without its end": Mistake(
        helm.at("global.scheduling.priorityClass", "high"), "did you mean priorityClassName?"
    ),
    "pytorchjob.resources": Mistake(
        helm.at("pytorchjob.resources", {"limits": {"memory": "64Gi"}}),
        "write global.training.resources, or pytorchjob.training.resources for this job alone",
    ),
    "pytorchjob.nodes": Mistake(
        helm.at("pytorchjob.nodes", 4),
        "write global.training.nodes, or pytorchjob.training.nodes for this job alone",
    ),
    "a password in MLflow's address": Mistake(
        helm.at("global.training.config.mlflow.uri", "https://ada:secret@mlflow.example.com"),
        "name a Secret in global.secrets.mlflow.existingSecret",
    ),
    "a switch for W&B": Mistake(helm.at("wandb.enabled", True), "write global.secrets.wandb"),
    "null for a part": Mistake(
        helm.at("evaluate", None), "evaluate is null: leave it out, or switch the part off by evaluate.enabled: false"
    ),
    "null for a switch": Mistake(helm.at("dataset.enabled", None), "dataset.enabled is null: leave it out"),
    "null for no placement": Mistake(helm.at("dataset.scheduling.nodeSelector", None), "{} for none"),
    "GPUs under resources": Mistake(
        helm.at(f"{TRAINING}.resources.limits", {"nvidia.com/gpu": 8}), "set global.training.gpusPerNode instead"
    ),
    "CPUs above the limit": Mistake(
        helm.at(f"{TRAINING}.resources", {"requests": {"cpu": 16}, "limits": {"cpu": "8000m"}}),
        "global.training.resources.requests.cpu (16) is more than limits.cpu (8000m): lower the request, or raise the",
    ),
    "a device below its limit": Mistake(
        helm.at(
            f"{TRAINING}.resources", {"requests": {"vpc.amazonaws.com/efa": 4}, "limits": {"vpc.amazonaws.com/efa": 8}}
        ),
        "requests.vpc.amazonaws.com/efa is 4, and Kubernetes wants the same limit of such a resource",
    ),
    "a device without a limit": Mistake(
        helm.at("dataset.resources.requests", {"smarter-devices/fuse": 1}),
        "dataset.resources.requests.smarter-devices/fuse is 1, and Kubernetes wants the same limit",
    ),
    "GPUs under requests": Mistake(
        helm.at(f"{TRAINING}.resources.requests", {"nvidia.com/gpu": 8}), "set global.training.gpusPerNode instead"
    ),
    "a pull secret twice": Mistake(
        helm.at("global.image.pullSecrets", ["regcred", "other", "regcred"]),
        "pullSecrets has regcred twice: make one entry",
    ),
    "a host twice": Mistake(
        helm.at("dataset.hostAliases", [{"ip": "10.0.0.9", "hostnames": [name]} for name in "ab"]),
        "dataset.hostAliases has 10.0.0.9 twice: make one entry of both",
    ),
    "a kernel parameter twice": Mistake(
        helm.at(
            f"{TRAINING}.securityContext.sysctls", [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}] * 2
        ),
        "global.training.securityContext.sysctls has net.ipv4.ip_unprivileged_port_start twice",
    ),
    "a spread twice": Mistake(
        helm.at("global.scheduling.topologySpreadConstraints", [SPREAD, SPREAD | {"maxSkew": 2}]),
        "has zone ScheduleAnyway twice: make one entry of both",
    ),
    "a template in a label": Mistake(
        helm.at("global.labels.release", "{{ .Release.Name }}"),
        "these values are no templates, as those of extraObjects",
    ),
    "a label's name": Mistake(
        helm.at("global.labels", {"cost center": "a"}), 'global.labels has "cost center": write the name'
    ),
    "a sentence as label": Mistake(helm.at("dataset.podLabels", {"team": "of vision"}), "at most 63 letters, digits"),
    "a node's label": Mistake(
        helm.at("global.scheduling.nodeSelector", {"pool": "gpu,big"}), "global.scheduling.nodeSelector.pool is"
    ),
    "no name server": Mistake(
        helm.at(f"{TRAINING}.dnsPolicy", "None"), "name them in global.training.dnsConfig.nameservers"
    ),
    "the node's users in a pod's own": Mistake(
        helm.at(TRAINING, {"hostUsers": False, "unrestricted": {"hostNetwork": True}}), "leave hostUsers or"
    ),
    "a profile without its name": Mistake(
        helm.at("dataset.securityContext.appArmorProfile.type", "Localhost"), "localhostProfile belong together"
    ),
    "a profile without its type": Mistake(
        helm.at("dataset.securityContext.appArmorProfile", {}), "appArmorProfile has no type: write RuntimeDefault or"
    ),
    "a queue among labels of the job": Mistake(
        helm.at(f"{TRAINING}.jobLabels", {"kueue.x-k8s.io/queue-name": "a"}), "sets itself from global.scheduling.queue"
    ),
    "a group of Kueue's of a TrainJob's nodes": Mistake(
        helm.merged(helm.at(f"{TRAINING}.operator", "trainjob"), GROUP), "a TrainJob has nodes alone: Kueue refuses it"
    ),
    "a group of Kueue's without its launcher": Mistake(
        helm.merged(helm.at(f"{TRAINING}.operator", "mpijob"), GROUP), 'and "" in mpijob.launcher.podAnnotations'
    ),
    "a group of Kueue's without its workers": Mistake(
        helm.merged(
            helm.at(f"{TRAINING}.operator", "mpijob"),
            helm.at("mpijob.launcher.podAnnotations", {"kueue.x-k8s.io/podset-group-name": "ring"}),
        ),
        "Set it in both, or in neither",
    ),
    "a page of GitHub's": Mistake(
        helm.at("dataset.source.url", "https://github.com/ada/pets/blob/main/pets.zip"), "/raw/ in place of /blob/"
    ),
    "a repository of GitHub's": Mistake(
        helm.at("dataset.source.url", "https://www.github.com/ada/pets"), "which has /releases/download/ in it"
    ),
    "a page of GitLab's": Mistake(
        helm.at("dataset.source.url", "https://gitlab.com/ada/pets/-/blob/main/pets.zip"), "write /-/raw/ in place"
    ),
    "a page of Google Drive's": Mistake(
        helm.at("dataset.source.url", "https://drive.google.com/file/d/abc/view"), "into a bucket or on a web server"
    ),
    "Google Drive's download": Mistake(
        helm.at("dataset.source.url", "https://drive.google.com/uc?export=download&id=abc"), "a page of Google Drive's"
    ),
    "a page of Dropbox's": Mistake(
        helm.at("dataset.source.url", "https://www.dropbox.com/s/abc/pets.zip?dl=0"), "write dl=1 in place of dl=0"
    ),
    "a page of Hugging Face's with weights": Mistake(
        helm.at(f"{TRAINING}.config.model.pretrained", "https://huggingface.co/timm/resnet50"),
        "model.pretrained is https://huggingface.co/timm/resnet50, a page of Hugging Face's",
    ),
    "a group of Kueue's of one kind of pods": Mistake(
        helm.at(TRAINING, {"nodes": 1, "podAnnotations": {"kueue.x-k8s.io/podset-group-name": "ring"}}),
        "this job has a Master alone: Kueue refuses it",
    ),
    "a variable twice": Mistake(
        helm.at(f"{TRAINING}.env", [{"name": "TEAM", "value": "a"}, {"name": "TEAM", "value": "b"}]),
        "global.training.env has TEAM twice: keep one",
    ),
    "a variable under env and rdma.env": Mistake(
        helm.merged(
            helm.at(f"{TRAINING}.env", [{"name": "FI_PROVIDER", "value": "efa"}]),
            helm.at(f"{TRAINING}.rdma", {"resource": "rdma/ib", "env": [{"name": "FI_PROVIDER", "value": "efa"}]}),
        ),
        "global.training.env and global.training.rdma.env both have FI_PROVIDER: keep one",
    ),
    "a device under rdma and resources": Mistake(
        helm.merged(
            helm.at(f"{TRAINING}.rdma.resource", "rdma/ib"),
            helm.at(f"{TRAINING}.resources.limits", {"rdma/ib": 1}),
        ),
        "limits holds rdma/ib, and global.training.rdma.resource names it: leave one of them out",
    ),
    "shared memory above the limit": Mistake(
        helm.merged(helm.at(f"{TRAINING}.shmSize", "64Gi"), helm.at(f"{TRAINING}.resources.limits.memory", "32Gi")),
        "does not fit into global.training.resources.limits.memory",
    ),
    "tag: latest": Mistake(helm.at("global.image.tag", "latest"), "set the tag that `make push REGISTRY=...` prints"),
    "one run of two jobs": Mistake(
        helm.merged(
            helm.at(f"{TRAINING}.name", "first"),
            helm.at("pytorchjob.enabled", True),
            helm.at("mpijob.enabled", True),
        ),
        "set global.training.operator to train by one of them",
    ),
    "several MIG devices in a pod": Mistake(
        helm.at(f"{TRAINING}.gpuResource", "nvidia.com/mig-3g.40gb"), "Set gpusPerNode: 1"
    ),
    "an MPIJob as the platform's user": Mistake(
        helm.merged(helm.at("global.storage.uid", "platform"), helm.at(f"{TRAINING}.operator", "mpijob")),
        "set a uid that the namespace may use",
    ),
    "user 0": Mistake(helm.at("global.storage.uid", 0), "root is asked for by global.training.unrestricted.runAsRoot"),
    "a toleration of any value with one": Mistake(
        helm.at("global.scheduling.tolerations", [{"key": "gpu", "operator": "Exists", "value": "true"}]),
        "scheduling.tolerations[0] has operator: Exists and a value: take the value out, or write operator: Equal",
    ),
    "a toleration without its taint": Mistake(
        helm.at("dataset.scheduling.tolerations", [{"effect": "NoSchedule"}]),
        "dataset.scheduling.tolerations[0] has no key: name the taint's, or write operator: Exists for every taint",
    ),
    "a toleration for a while of what evicts nobody": Mistake(
        helm.at(
            f"{TRAINING}.scheduling.tolerations",
            [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 60}],
        ),
        "tolerations[0] has tolerationSeconds, which only effect: NoExecute has",
    ),
    "a volume of no kind": Mistake(
        helm.at(f"{TRAINING}.extraVolumes", [{"name": "cache"}]),
        "global.training.extraVolumes: cache says not what it is: write its kind with a map, such as emptyDir: {}",
    ),
    "a volume of two kinds": Mistake(
        helm.at("dataset.extraVolumes", [{"name": "cache", "emptyDir": {}, "hostPath": {"path": "/mnt"}}]),
        "dataset.extraVolumes: cache is emptyDir and hostPath at once: keep one of them",
    ),
    "a container without its image": Mistake(
        helm.at(f"{TRAINING}.extraContainers", [{"name": "daemon"}]), "extraContainers: daemon has no image: name one"
    ),
    "a variable with its value in its name": Mistake(
        helm.at(f"{TRAINING}.env", [{"name": "NCCL_DEBUG=INFO"}]),
        'global.training.env has NCCL_DEBUG=INFO: write {name: NCCL_DEBUG, value: "INFO"}',
    ),
    "a variable with two sources": Mistake(
        helm.at(
            "dataset.env",
            [{"name": "NODE", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        ),
        "dataset.env: NODE has value and valueFrom: keep one of them",
    ),
    "a claim of devices that names none": Mistake(
        helm.at(f"{TRAINING}.resourceClaims", [{"name": "gpu"}]),
        "resourceClaims: gpu: set one of resourceClaimName and resourceClaimTemplateName",
    ),
    "one node's claim for two pods": Mistake(
        helm.at("global.storage.results.accessModes", ["ReadWriteOncePod"]), "ReadWriteMany"
    ),
}
