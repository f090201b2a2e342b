"""A cluster on which a run of two nodes with eight GPUs each finds all that it asks, as objects of the API."""

import base64
import copy
import functools
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trainyard.cluster import crds, demand, doctor, published, survey
from trainyard.cluster.checks import probes
from trainyard.cluster.checks.diagnosis import Check, Diagnosis
from trainyard.cluster.checks.volumes import Probe

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "vision"
VALUES = {
    "global": {
        "image": {"registry": "registry.example.com/team", "tag": "0.1.0"},
        "storage": {"data": {"storageClass": "nfs", "size": "300Gi"}, "results": {"storageClass": "nfs"}},
        "scheduling": {
            "queue": "vision",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "training": {"nodes": 2, "gpusPerNode": 8, "shmSize": "8Gi"},
    },
    "dataset": {"source": {"url": "https://data.example.com/pictures.zip"}},
}


def stamp(seconds: float = 0.0) -> str:
    """Return a time of the API, so many seconds before now."""
    return (NOW - timedelta(seconds=seconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def thing(kind: str, name: str, space: str = "", api: str = "v1", **parts: object) -> dict:
    meta: dict = {"name": name, "uid": f"uid-{name}", "creationTimestamp": stamp(3600)}
    meta |= {"namespace": space} if space else {}
    meta |= parts.pop("metadata", {})  # type: ignore[operator]
    return {"apiVersion": api, "kind": kind, "metadata": meta, **parts}


def node(name: str, gpus: int = 0, **labels: str) -> dict:
    amounts = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "900Gi", "pods": "110"}
    amounts |= {"nvidia.com/gpu": str(gpus), "rdma/ib": "0"} if gpus else {}
    held = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": stamp(60)}]
    held += [{"type": one, "status": "False"} for one in ("MemoryPressure", "DiskPressure", "PIDPressure")]
    spec: dict = {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]} if gpus else {}
    known = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", **labels}
    known |= {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": str(gpus)} if gpus else {}
    info = {"architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.36.4"}
    status = {
        "capacity": dict(amounts),
        "allocatable": dict(amounts),
        "conditions": held,
        "nodeInfo": info,
        "images": [],
    }
    return thing("Node", name, metadata={"labels": known}, spec=spec, status=status)


def deployment(name: str, space: str, image: str, *args: str) -> dict:
    labels = {"app": name}
    container = {"name": name, "image": image, "args": list(args)}
    spec = {"replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}  # fmt: skip
    status = {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
    return thing("Deployment", name, space, "apps/v1", spec=spec, status=status)


def definition(kind: str) -> dict:
    version, fields = crds.NEEDED[kind]
    root: dict = {}
    for field in fields:
        inner = root
        for step in field.split("."):
            inner = inner.setdefault("properties", {}).setdefault(step, {})
    schema = {"openAPIV3Schema": {"properties": {"spec": root}}}
    spec = {"versions": [{"name": version, "served": True, "schema": schema}]}
    status = {"conditions": [{"type": "Established", "status": "True"}]}
    return thing("CustomResourceDefinition", kind, api="apiextensions.k8s.io/v1", spec=spec, status=status)


def lease(name: str, space: str = "kube-node-lease", ago: float = 4.0) -> dict:
    managed = [{"manager": "kubelet", "operation": "Update", "time": stamp(ago)[:19] + "Z"}]
    return thing("Lease", name, space, "coordination.k8s.io/v1", metadata={"managedFields": managed},
                 spec={"renewTime": stamp(ago)})  # fmt: skip


def endpoints(service: str, space: str, ready: bool = True) -> dict:
    return thing("EndpointSlice", f"{service}-x", space, "discovery.k8s.io/v1",
                 metadata={"labels": {"kubernetes.io/service-name": service}},
                 endpoints=[{"addresses": ["10.0.0.9"], "conditions": {"ready": ready}}])  # fmt: skip


@functools.cache
def bundle(days: float) -> str:
    """Return a caBundle with one certificate that ends so many days after now."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    number, begin = x509.random_serial_number(), NOW - timedelta(days=400)
    made = x509.CertificateBuilder(name, name, key.public_key(), number, begin, NOW + timedelta(days=days))
    return base64.b64encode(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)).decode()


def hook(name: str, service: str, space: str, resource: str, group: str = "") -> dict:
    rule = {"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": ["CREATE", "UPDATE"]}
    client = {"service": {"name": service, "namespace": space}, "caBundle": bundle(36_500)}
    hooks = [{"name": f"v{name}.example.com", "clientConfig": client, "rules": [rule], "failurePolicy": "Fail",
              "namespaceSelector": {}, "sideEffects": "None"}]  # fmt: skip
    return thing("ValidatingWebhookConfiguration", name, api="admissionregistration.k8s.io/v1", webhooks=hooks)


def active() -> dict:
    return {"conditions": [{"type": "Active", "status": "True"}]}


def queue_objects() -> dict[str, list[dict]]:
    api = "kueue.x-k8s.io/v1beta2"
    amounts = {"cpu": "400", "memory": "4000Gi", "nvidia.com/gpu": "32"}
    resources = [{"name": name, "nominalQuota": text} for name, text in amounts.items()]
    group = {"coveredResources": list(amounts), "flavors": [{"name": "gpu", "resources": resources}]}
    spec = {"resourceGroups": [group], "namespaceSelector": {}, "stopPolicy": "None"}
    return {
        "localqueues": [
            thing("LocalQueue", "vision", NAMESPACE, api, spec={"clusterQueue": "training"}, status=active())
        ],
        "clusterqueues": [thing("ClusterQueue", "training", api=api, spec=spec, status=active())],
        "resourceflavors": [thing("ResourceFlavor", "gpu", api=api, spec={"nodeLabels": {"pool": "gpu"}})],
        "workloadpriorityclasses": [thing("WorkloadPriorityClass", "deadline", api=api, value=1000)],
    }


@functools.cache
def _sound() -> survey.ClusterSurvey:
    gpu = {"pool": "gpu", "nvidia.com/gpu.product": "NVIDIA-H100"}
    names = ("cpu-1", "gpu-1", "gpu-2")
    space = thing("Namespace", NAMESPACE, metadata={"labels": {
        "kubernetes.io/metadata.name": NAMESPACE, "pod-security.kubernetes.io/enforce": "restricted"}},
        status={"phase": "Active"})  # fmt: skip
    init = "--pytorch-init-container-template-file=/etc/init-pytorch/template"
    objects = {
        "namespace": [space],
        "nodes": [node("cpu-1"), node("gpu-1", 8, **gpu), node("gpu-2", 8, **gpu)],
        "leases": [*(lease(name) for name in names), lease("kube-scheduler", "kube-system", 2.0)],
        "deployments": [
            deployment("training-operator", "kubeflow", "kubeflow/training-operator:v1.9.4",
            "--enable-scheme=pytorchjob", init),
            deployment("mpi-operator", "mpi-operator", "mpioperator/mpi-operator:0.8.2"),
            deployment("kueue-controller-manager", "kueue-system", "registry.k8s.io/kueue/kueue:v0.18.4"),
            deployment("coredns", "kube-system", "registry.k8s.io/coredns/coredns:v1.12.0"),
        ],
        "daemonsets": [thing("DaemonSet", "nvidia-device-plugin", "kube-system", "apps/v1",
                             status={"desiredNumberScheduled": 2, "numberReady": 2})],
        "customresourcedefinitions": [definition("pytorchjobs.kubeflow.org"), definition("mpijobs.kubeflow.org")],
        "storageclasses": [thing("StorageClass", "nfs", api="storage.k8s.io/v1", provisioner="nfs.csi.k8s.io",
                                 reclaimPolicy="Delete", volumeBindingMode="Immediate",
                                 metadata={"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}})],
        "csidrivers": [thing("CSIDriver", "nfs.csi.k8s.io", api="storage.k8s.io/v1", spec={})],
        "csinodes": [thing("CSINode", name, api="storage.k8s.io/v1", spec={"drivers": [{"name": "nfs.csi.k8s.io"}]})
                     for name in names],
        "services": [
            thing("Service", "kube-dns", "kube-system", metadata={"labels": {"k8s-app": "kube-dns"}},
                  spec={"selector": {"app": "coredns"}, "ports": [{"port": 53}]}),
            thing("Service", "training-operator", "kubeflow", spec={"ports": [{"port": 443}]}),
        ],
        "endpointslices": [endpoints("kube-dns", "kube-system"), endpoints("training-operator", "kubeflow")],
        "validatingwebhookconfigurations": [
            hook("pytorchjob", "training-operator", "kubeflow", "pytorchjobs", "kubeflow.org")],
        "serviceaccounts": [thing("ServiceAccount", "default", NAMESPACE)],
        **queue_objects(),
    }  # fmt: skip
    return survey.ClusterSurvey(NAMESPACE, "v1.36.4", NOW, 0.0, objects, {})


def sound() -> survey.ClusterSurvey:
    """Return the cluster, whose objects a test may change."""
    return copy.deepcopy(_sound())


@functools.cache
def rendered(text: str) -> tuple[list[dict], str]:
    """Return the chart's objects for values as JSON, by the real Helm."""
    assert (ROOT / "build/bin/helm").exists(), "the chart is rendered by the pinned Helm: run hack/tools/build"
    return demand.render(demand.json.loads(text), str(published.default_chart()), NAMESPACE, "v1.36.4")


def asking(values: dict) -> demand.Demand:
    """Return what a run of these values asks."""
    objects, refused = rendered(demand.json.dumps(values))
    return demand.Demand("the run", False, values, copy.deepcopy(objects), refused=refused)


BOUND = probes.Shown(
    [Probe("nfs", "ReadWriteMany", True, 2.0)],
    [probes.Start("registry.example.com/team/trainyard-pytorch:0.1.0", True, True, "yes")],
    [],
)


def checks(seen: survey.ClusterSurvey, asked: demand.Demand, shown: probes.Shown = BOUND) -> list[Check]:
    """Return the checks of a cluster on which admission refuses nothing."""
    from trainyard.cluster.trials import Answer

    return doctor.diagnose(seen, asked, [Answer("all", "")], shown)


def found(seen: survey.ClusterSurvey, values: dict = VALUES, shown: probes.Shown = BOUND) -> list[Diagnosis]:
    """Return what is wrong with a cluster for a run of these values."""
    return [one for each in checks(seen, asking(values), shown) for one in each.wrong]
