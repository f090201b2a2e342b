"""What the chart answers to keys as other charts have them, and to values of the wrong kind: the likeliest first."""

import re

import pytest

from . import helm
from .mistakes import BASE

# A key as people write it -> what is answered, or its first part. First those that a review of real values files met.
# fmt: off
KEYS = {
    "nodeSelector": "write global.scheduling.nodeSelector or",
    "tolerations": "write global.scheduling.tolerations or",
    "affinity": "write global.scheduling.affinity or",
    "resources": "write global.training.resources.",
    "image": "write global.image.",
    "commonLabels": "write global.labels.",
    "commonAnnotations": "write global.annotations.",
    "global.imageRegistry": "write global.image.registry.",
    "global.imagePullSecrets": "write global.image.pullSecrets.",
    "global.training.args": "write global.training.command or",
    "pytorchjob.image.tag": "write global.image.tag.",
    "nameOverride": "names follow from the release's",
    "fullnameOverride": "names follow from the release's",
    "dnsConfig": "write global.training.dnsConfig.",
    "dnsPolicy": "write global.training.dnsPolicy.",
    "hostUsers": "write global.training.hostUsers.",
    "jobLabels": "write global.training.jobLabels.",
    "appArmorProfile": "write global.training.securityContext.",
    "dataset.appArmorProfile": "write dataset.securityContext.",
    "global.training.gpuFraction": "write global.training.gpusBy.",
    "global.storage.data.volumeAttributesClassName": "make the claim yourself, as under extraObjects, and name it in",
    "global.storage.results.dataSourceRef": "make the claim yourself, as under extraObjects, and name it in",
    "global.training.initContainers": "global.training.extraInitContainers run before the trainers",
    "global.training.networkPolicy": "write networkPolicy.",
    "global.training.privileged": "write global.training.unrestricted.privileged.",
    # a trainer's keys under a job
    "pytorchjob.epochs":
        "write global.training.config.epochs, or pytorchjob.training.config.epochs for this job alone.",
    "mpijob.gpusPerNode": "write global.training.gpusPerNode, or mpijob.training.gpusPerNode for this job alone.",
    "pytorchjob.config": "write global.training.config, or pytorchjob.training.config for this job alone.",
    "pytorchjob.nodeSelector":
        "write global.training.scheduling.nodeSelector, or pytorchjob.training.scheduling.nodeSelector for this job",
    "global.training.epochs": "write global.training.config.epochs.",
    "global.training.batch_size": "write global.training.config.batch.global.",
    "global.training.config.learningRate": "write global.training.config.optimizer.lr.",
    "mpijob.launcher.nodeSelector": "write mpijob.launcher.scheduling.nodeSelector.",
    "mpijob.launcher.cpu": "write mpijob.launcher.resources.",
    # parts
    "dataset.nodeSelector": "write dataset.scheduling.nodeSelector.",
    "dataset.tolerations": "write dataset.scheduling.tolerations.",
    "dataset.volumes": "did you mean extraVolumes?",
    "dataset.initContainers": "in every pod extraContainers start before the main one and run beside it",
    "dataset.url": "write dataset.source.url.",
    "dataset.podSecurityContext": "did you mean securityContext?",
    "dataset.serviceAccountName": "did you mean serviceAccount?",
    "evaluate.nodes": "write global.training.nodes.",
    "filebrowser.host": "write filebrowser.ingress.host.",
    # names of other charts
    "replicaCount": "write global.training.nodes.",
    "imagePullSecrets": "write global.image.pullSecrets.",
    "serviceAccount.create": "write global.serviceAccountName or global.training.serviceAccount.",
    "podSecurityContext": "write global.training.securityContext.",
    "containerSecurityContext": "write global.training.unrestricted or global.storage.uid.",
    "podAnnotations": "write global.podAnnotations or",
    "podLabels": "write global.training.podLabels.",
    "extraEnvVars": "write global.training.env.",
    "extraEnvVarsSecret": "write global.training.envFrom.",
    "sidecars": "write global.training.extraContainers.",
    "extraDeploy": "write extraObjects.",
    "extraManifests": "write extraObjects.",
    "persistence": "write global.storage.",
    "storageClass": "write global.storage.data.storageClass or global.storage.results.storageClass.",
    "service": "write filebrowser.service.",
    "ingress": "write filebrowser.ingress.",
    "serviceMonitor": "write global.metrics.",
    "autoscaling": "a job trains on as many nodes as global.training.nodes says",
    "rbac": "no part asks the API for anything",
    "podDisruptionBudget": "a pod that is evicted saves first",
    "livenessProbe": "the chart sets the probes",
    "global.nodeSelector": "write global.scheduling.nodeSelector or",
    "global.priorityClass": "write global.scheduling.priorityClassName.",
    "global.registry": "write global.image.registry.",
    "global.training.nprocPerNode": "write global.training.gpusPerNode or global.training.processesPerNode.",
    "global.training.restartPolicy": "the chart sets it",
    "global.training.terminationGracePeriodSeconds": "did you mean gracePeriodSeconds?",
    "global.training.hostNetwork": "write global.training.unrestricted.hostNetwork.",
    "global.storage.existingClaim": "write global.storage.data.existingClaim or global.storage.results.existingClaim.",
    # the least nested first, and nothing that only has the same name
    "env": "write global.training.env or",
    "pytorchjob.env": "write global.training.env or",
    "queue": "write global.scheduling.queue or",
    "global.training.scheduling.queue": "write global.scheduling.queue.",
    "global.training.rdma.enabled": "Its map has by, count, env, resource.",
    "global.training.rdma.name": "Its map has by, count, env, resource.",
    "filebrowser.service.type": "Its map has port.",
    "dataset.suspend": "Its map has activeDeadlineSeconds, backoffLimit,",
    "global.training.unrestricted.capabilities": "write global.training.rdma.",
    "pytorchReplicaSpecs": "write global.training.",
    "queueName": "write global.scheduling.queue.",
    # the same path within or without global
    "training": "write global.training.",
    "storage.data": "write global.storage.data.",
    "dataset.name": "write global.dataset.name.",
    "secrets.wandb.existingSecret": "write global.secrets.wandb.existingSecret.",
    "global.pytorchjob": "write pytorchjob.",
    "global.dataset.source": "write dataset.source.",
    "global.networkPolicy": "write networkPolicy.",
    # beside the asked one, and jobs before other parts
    "global.secrets.wandb.secretName": "write global.secrets.wandb.existingSecret.",
    "global.storage.data.claimName": "write global.storage.data.existingClaim.",
    "global.image.repository": "write pytorchjob.image.repository or mpijob.image.repository or",
    "global.training.activeDeadlineSeconds": "write pytorchjob.runPolicy.activeDeadlineSeconds or",
    "global.training.runPolicy": "write pytorchjob.runPolicy or",
    "global.training.config.amp": "write global.training.config.precision.",
    "global.training.config.num_workers": "write global.training.config.data.workers.",
    "global.training.config.val": "write global.training.config.validate.",
    "global.training.config.output_dir": "a run's folder follows from its name: set global.training.name",
    "global.scheduling.nodeName": "write global.scheduling.nodeSelector with the label kubernetes.io/hostname",
    "global.scheduling.instanceType": "write global.scheduling.nodeSelector.",
    "global.storage.nfs": "and name the claim in existingClaim or the volume in volumeName",
    "global.storage.data.hostPath": "the claims hold data and results: name one in existingClaim",
    "namespace": "the namespace is helm's: write -n NAMESPACE",
}
# A key and a value of the wrong kind -> what is answered.
KINDS = {
    "memory without a unit": (
        "global.training.resources.requests.memory", 64, "(64): write a quantity of bytes, such as 16Gi"
    ),
    "64 bytes": (
        "global.training.resources.requests.memory", "64", '"64": write a quantity of bytes, such as 16Gi'
    ),
    "a size without a unit": ("global.training.shmSize", 64, "(64): write a quantity of bytes"),
    "an optimizer's name": ("global.training.config.optimizer", "sgd", "write a map, such as {name: sgd, lr: 0.1}."),
    "a switch for W&B": ("global.training.config.wandb", True, "write a map, such as {project: pets}."),
    "a switch for an average": ("global.training.config.ema", True, "write a map, such as {decay: 0.9999}."),
    "an augmentation's name": ("global.training.config.augment", "mixup", "write a map, such as {mixup: 0.2}."),
    "a run's name": ("global.training.config.run", "first", "write a map, such as {max_restarts: 3}."),
    "a backend's name": ("global.training.config.comm", "nccl", "write a map, such as {backend: nccl}."),
    "a slash at the end": ("global.image.registry", "registry.example.com:5000/team/", "without the slash at its end."),
    "a digest behind the tag": (
        "global.image.tag", f"0.1.0@sha256:{'0' * 64}", "and the digest in image.digest of each part."
    ),
    "a number as batch": ("global.training.config.batch", 256, "write a map, such as {global: 256}."),
    "true as label": (
        "global.scheduling.nodeSelector", {"gpu": True}, 'gpu is true: put it in quotes, "true", or on the'
    ),
    "a number as label": ("global.labels", {"cost": 4711}, 'cost is a number (4711): put it in quotes, "4711", or on'),
    "a number as variable": (
        "global.training.env", [{"name": "A", "value": 1}], 'value (of A) is a number (1): put it in quotes, "1"'
    ),
    "true as variable": (
        "dataset.env", [{"name": "A", "value": True}], "dataset.env[0].value (of A) is true: put it in quotes"
    ),
    "a switch in quotes": ("dataset.enabled", "false", 'is a text ("false"): write false without quotes.'),
    "yes": ("filebrowser.writable", "yes", 'is a text ("yes"): write true without quotes.'),
    "another text as switch": ("filebrowser.writable", "all", "write false or true without quotes."),
    "a time of a test": ("global.training.gpuMemoryTest", "10s", "is 10s: write it in seconds, 10."),
    "minutes": ("global.training.gracePeriodSeconds", "2m", "is 2m: write it in seconds, 120."),
    "hours": ("global.dataset.wait", "24h", "is 24h: write it in seconds, 86400."),
    "soon": ("global.dataset.wait", "soon", "write seconds, as a number."),
    "an image's name": (
        "global.image", "registry.example.com/team", "write a map, such as {registry: registry.example.com/team"
    ),
    "an object without its kind": (
        "extraObjects", [{"metadata": {"name": "a"}}], "extraObjects[0] has no apiVersion or no"
    ),
    "claims that are not named": (
        "global.training.rdma.by", "claims", "name the claims in global.training.resourceClaims"
    ),
    "networks that are not named": ("global.training.rdma.by", "annotations", "such as k8s.v1.cni.cncf.io/networks"),
    "a page of Kaggle's": (
        "dataset.source.url", "https://www.kaggle.com/datasets/ada/dogs", "set dataset.source.dataset to the OWNER/NAME"
    ),
    "a page of Hugging Face's": (
        "dataset.source.url", "https://huggingface.co/datasets/ada/dogs", "write the address of one file, which has"
    ),
    "a limit that does not hold PyTorch": (
        "global.training.resources.limits.memory", "100Mi", "is 100Mi, which does not hold PyTorch"
    ),
    "a Secret's name": ("global.secrets.wandb", "key", "is a text: write a map, such as {existingSecret: wandb}."),
    "a claim's name": ("global.storage.data", "imagenet", "is a text: write a map, such as {existingClaim: imagenet}."),
    "a switch for metrics": ("global.metrics", True, "write a map, such as {enabled: true}."),
    "a switch for policies": (
        "networkPolicy", True, "networkPolicy is true or false: write a map, such as {ingress: true}, or {enabled:"
    ),
    "a time to live": ("pytorchjob.runPolicy.ttlSecondsAfterFinished", "1h", "is 1h: write it in seconds, 3600."),
    "variables as texts": (
        "global.training.env", ["NCCL_DEBUG=INFO"],
        'env[0] is a text ("NCCL_DEBUG=INFO"): write a map; the list is such as [{name: NCCL_DEBUG, value: INFO}].',
    ),
    "tolerations as texts": (
        "global.scheduling.tolerations", ["nvidia.com/gpu"], "write a map; the list is such as [{key: nvidia.com/gpu"
    ),
    "volumes as Docker's": (
        "dataset.extraVolumes", ["/mnt:/mnt"], "write a map; the list is such as [{name: cache, emptyDir: {}}]."
    ),
    "a Secret's name as environment": (
        "dataset.envFrom", ["proxy"], "write a map; the list is such as [{secretRef: {name: proxy}}]."
    ),
    "an entry that is empty": ("global.scheduling.tolerations", [None], "tolerations[0] is null: write a map"),
    "an address as rule": (
        "networkPolicy.training.egress", ["10.0.0.0/8"], 'egress[0] is a text ("10.0.0.0/8"): write a map; the list is'
    ),
    "an object as text": (
        "extraObjects", ["apiVersion: v1\nkind: ConfigMap"], "write a map; the list is such as [{apiVersion: v1, kind:"
    ),
    "a label of the command line": (
        "global.scheduling.nodeSelector", {"kubernetes": {"io/hostname": "node1"}},
        "nodeSelector.kubernetes is a map: write a text; on the command line a dot within a name is \\., as in --set "
        "'global.scheduling.nodeSelector.kubernetes\\.io/hostname=node1'.",
    ),
    "an annotation of the command line": (
        "dataset.podAnnotations", {"sidecar": {"example": {"com/inject": True}}},
        "--set 'dataset.podAnnotations.sidecar\\.example\\.com/inject=true'.",
    ),
    "a device of the command line": (
        "dataset.resources.limits", {"smarter-devices": {"example": {"com/fuse": 1}}},
        "--set 'dataset.resources.limits.smarter-devices\\.example\\.com/fuse=1'.",
    ),
    "a path where nothing is": (
        "dataset.source", {"url": "", "path": "/mnt/pets.zip"}, "where nothing is mounted: write a path below /data"
    ),
}
# fmt: on


def values_of(path: str, value: object) -> helm.Values:
    return helm.merged(BASE, helm.at(path, value))


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """What is said of each, by name: of keys all at once."""
    keys = helm.merged(BASE, *(helm.at(key, {"anything": "at all"}) for key in KEYS))
    cases = [values_of(path, value) for path, value, _ in KINDS.values()]
    all_keys, *said = [one.get("error", one.get("manifests", "")) for one in helm.render_all([keys, *cases])]
    return dict.fromkeys(KEYS, all_keys) | dict(zip(KINDS, said, strict=True))


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_another_chart_is_answered_with_the_likeliest_of_this_one(key: str, answers: dict[str, str]):
    asked = re.escape(key.removesuffix(".create"))
    found = re.search(rf"(?m)^{asked} is not a key of this chart[:.] .*{re.escape(KEYS[key])}", answers[key])
    assert found, answers[key]


@pytest.mark.parametrize("key", KEYS)
def test_what_is_advised_is_a_key(key: str, answers: dict[str, str]):
    said = f"{key.removesuffix('.create')} is not a key of this chart"
    (line,) = [line for line in answers[key].splitlines() if line.startswith(said)]
    parts = r"\b(?:global|dataset|mpijob|pytorchjob|filebrowser)(?:\.[A-Za-z_]+)+"
    for path in re.findall(parts, line.partition("chart:")[2]):
        trained = re.sub(r"^(pytorchjob|mpijob|trainjob)\.training\.", "global.training.", path)
        assert helm.is_key(trained), path


@pytest.mark.parametrize("name", KINDS)
def test_a_value_of_the_wrong_kind_is_answered_with_one_that_works(name: str, answers: dict[str, str]):
    assert KINDS[name][2] in answers[name]


def test_keys_for_anchors_are_a_users_own():
    values = helm.merged(BASE, {"x-gpu": [{"key": "nvidia.com/gpu"}], "x-more": 3})
    assert helm.documents(helm.template(values)) == helm.documents(helm.template(BASE))
