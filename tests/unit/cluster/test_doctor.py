"""doctor on objects of the API: a sound cluster has no finding; each way of making it wrong is named, with a remedy."""

import re
from pathlib import Path

import pytest

from tests.unit.cluster import clusters
from tests.unit.cluster.changes import (
    Change,
    add,
    both,
    change,
    check_named,
    condition,
    drop,
    limit,
    of,
    policy,
    quota,
    values,
)
from tests.unit.cluster.clusters import BOUND, NAMESPACE, VALUES, found, sound, stamp, thing
from trainyard.cluster import crds, doctor, proposal, trainjobs, trials, versions
from trainyard.cluster.checks import operators, probes
from trainyard.cluster.checks.diagnosis import ERROR, NOTE, WARNING
from trainyard.cluster.checks.volumes import FOLDER, Probe
from trainyard.cluster.errors import RefusedError
from trainyard.cluster.survey import ClusterSurvey

ROOT = Path(__file__).parents[3]
CRD, POLICY = "customresourcedefinitions", "validatingwebhookconfigurations"
PENDING = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {
    "reason": "ImagePullBackOff", "message": "not found"}}}]}  # fmt: skip
CRASHING = both(
    change("deployments", "training-operator", "status", {"replicas": 1}),
    add(
        "pods",
        thing("Pod", "to-1", "kubeflow", metadata={"labels": {"app": "training-operator"}}, spec={}, status=PENDING),
    ),
)
FULL = thing("Pod", "other", "team", spec={"nodeName": "gpu-1", "containers": [
    {"resources": {"requests": {"nvidia.com/gpu": "8"}}}]}, status={"phase": "Running"})  # fmt: skip

# What is changed -> level, object, and words of what is seen and of the remedy
WAYS: dict[str, tuple[Change, str, str, str, str]] = {
    "no operator's CRD": (
        drop(CRD, "pytorchjobs.kubeflow.org"), ERROR, "crd/pytorchjobs.kubeflow.org", "does not know", "?ref=v1.9.4"),
    "a CRD that is too old": (
        change(CRD, "pytorchjobs.kubeflow.org", "spec versions 0 schema", {}), ERROR, "crd/pytorchjobs.kubeflow.org",
        "does not know spec.nprocPerNode", "update the operator"),
    "another operator's MPIJob": (
        change(CRD, "mpijobs.kubeflow.org", "spec versions 0 name", "v1"), WARNING, "crd/mpijobs.kubeflow.org",
        "it serves v1", "mpi-operator 0.8.2"),
    "a CRD that is being deleted": (
        change(CRD, "pytorchjobs.kubeflow.org", "metadata deletionTimestamp", stamp()), ERROR,
        "crd/pytorchjobs.kubeflow.org", "being deleted", "finalizers"),
    "a CRD without its operator": (
        drop("deployments", "training-operator"), ERROR, "training-operator", "no deployment runs", "kubectl apply"),
    "an operator scaled to 0": (
        change("deployments", "training-operator", "spec replicas", 0), ERROR, "deployment/training-operator",
        "scaled to 0", "kubectl -n kubeflow scale deployment/training-operator --replicas=1"),
    "an operator that does not start": (
        CRASHING, ERROR, "deployment/training-operator", "ImagePullBackOff: not found", "correct its image"),
    "an operator of another namespace": (
        change("deployments", "training-operator", "spec template spec containers 0 args",
               ["--namespace=other", "--pytorch-init-container-template-file=x"]), ERROR,
               "deployment/training-operator",
        "looks at namespace other alone", "take its argument --namespace out"),
    "an operator without this kind": (
        change("deployments", "training-operator", "spec template spec containers 0 args",
               ["--enable-scheme=tfjob", "--pytorch-init-container-template-file=x"]), ERROR,
        "deployment/training-operator", "ignores PyTorchJobs", "add --enable-scheme=pytorchjob"),
    "an old operator": (
        change("deployments", "training-operator", "spec template spec containers 0 image",
        "x/training-operator:v1.8.0"),
        NOTE, "deployment/training-operator", "1.8.0, older than the 1.9.4", "update it"),
    "the operator's init container in restricted": (
        change("deployments", "training-operator", "spec template spec containers 0 args", []), ERROR,
        "deployment/training-operator", "no securityContext", "set pytorchjob.form: elastic"),
    "no StorageClass of that name": (
        change("storageclasses", "nfs", "metadata name", "other"), ERROR, "claim/doctor-data",
        "StorageClass nfs does not exist", "global.storage.data.storageClass to one of other"),
    "two default StorageClasses": (
        add("storageclasses", thing("StorageClass", "fast", provisioner="x", metadata={
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}})), WARNING, "storageclasses",
        "fast, nfs", "is-default-class=false"),
    "a CSI driver that is not installed": (
        drop("csidrivers", "nfs.csi.k8s.io"), ERROR, "storageclass/nfs", "nfs.csi.k8s.io is not installed", "install"),
    "a CSI driver that GPU nodes lack": (
        change("csinodes", "gpu-2", "spec", {"drivers": []}), WARNING, "storageclass/nfs", "does not run on gpu-2",
        "tolerations of these nodes"),
    "a topology of nowhere": (
        change("storageclasses", "nfs", "allowedTopologies", [
            {"matchLabelExpressions": [{"key": "zone", "values": ["nowhere"]}]}]), ERROR, "storageclass/nfs",
        "no node of this cluster", "correct them"),
    "a node that is not ready": (
        condition("Ready", "Unknown", "Kubelet stopped posting node status."), WARNING, "node/gpu-1",
        "Kubelet stopped posting", "kubectl describe node/gpu-1"),
    "GPU nodes that are not ready": (
        both(drop("nodes", "gpu-2"), condition("Ready", "False", "container runtime is down")), ERROR, "pytorchjob",
        "1 not ready", "kubectl describe node"),
    "a node that is cordoned": (
        change("nodes", "gpu-1", "spec unschedulable", True), WARNING, "node/gpu-1", "cordoned",
        "kubectl uncordon gpu-1"),
    "a node without disk": (
        condition("DiskPressure", "True", "kubelet has disk pressure"), WARNING, "node/gpu-1", "DiskPressure",
        "free its disk"),
    "a node without network": (
        condition("NetworkUnavailable", "True", "no route"), WARNING, "node/gpu-1", "NetworkUnavailable",
        "network plugin"),
    "GPUs that are broken": (
        change("nodes", "gpu-1", "status allocatable nvidia.com/gpu", "6"), WARNING, "node/gpu-1",
        "2 of its 8 nvidia.com/gpu are unhealthy", "nvidia-smi"),
    "GPUs without a device plugin": (
        both(change("nodes", "gpu-1", "status allocatable", {"cpu": "64", "memory": "512Gi"}),
             change("nodes", "gpu-1", "status capacity", {"cpu": "64", "memory": "512Gi"})), WARNING, "node/gpu-1",
        "offers no nvidia.com/gpu", "device plugin of nvidia.com"),
    "a GPU that its driver has lost": (
        both(change("nodes", "gpu-1", "status allocatable nvidia.com/gpu", "7"),
             change("nodes", "gpu-1", "status capacity nvidia.com/gpu", "7")), WARNING, "node/gpu-1",
        "8 GPUs by its labels, and 7", "nvidia-smi"),
    "GPUs under another name": (
        lambda seen: [one["status"][part].update({"amd.com/gpu": one["status"][part].pop("nvidia.com/gpu", "8")})
                      for one in seen.of("nodes")[1:] for part in ("capacity", "allocatable")], ERROR,
        "pytorchjob", "Insufficient nvidia.com/gpu: 0 of 8", "global.training.gpuResource: amd.com/gpu"),
    "too few GPU nodes": (
        lambda seen: of(seen, "nodes", "gpu-2")["status"]["allocatable"].update({"nvidia.com/gpu": "4"}), WARNING,
        "node/gpu-2", "4 of its 8", "cordon"),
    "a taint that the run does not tolerate": (
        both(*(change("nodes", name, "spec taints", [{"key": "team", "value": "red", "effect": "NoSchedule"}])
               for name in ("gpu-1", "gpu-2"))), ERROR, "pytorchjob",
        "2 had untolerated taint team=red:NoSchedule",
        "[{key: team, operator: Equal, value: red, effect: NoSchedule}]"),
    "GPUs that others use": (
        both(*(add("pods", FULL | {"spec": FULL["spec"] | {"nodeName": name}}) for name in ("gpu-1", "gpu-2"))), NOTE,
        "pytorchjob", "room for 0 of 2 pods now, for 2 when nothing else runs", "queue"),
    "GPUs of two kinds": (
        change("nodes", "gpu-1", "metadata labels nvidia.com/gpu.product", "NVIDIA-A100"), NOTE, "nodes",
        "NVIDIA-A100, NVIDIA-H100", "nodeSelector: {nvidia.com/gpu.product"),
    "RDMA that nobody asks for": (
        both(*(change("nodes", name, f"status {part} rdma/ib", "1") for name in ("gpu-1", "gpu-2")
               for part in ("capacity", "allocatable"))), NOTE, "rdma", "NCCL uses TCP",
        "global.training.rdma.resource: rdma/ib"),
    "another processor": (
        change("nodes", "gpu-1", "status nodeInfo architecture", "arm64"), WARNING, "node/gpu-1", "arm64",
        "arch: amd64"),
    "a kubelet that is too old": (
        change("nodes", "gpu-1", "status nodeInfo kubeletVersion", "v1.27.1"), WARNING, "node/gpu-1", "v1.27.1",
        "update"),
    "a device plugin that is down": (
        change("daemonsets", "nvidia-device-plugin", "status numberReady", 1), WARNING,
        "daemonset/nvidia-device-plugin",
        "1 of 2", "kubectl -n kube-system describe daemonset"),
    "GPUs that are shared": (
        change("nodes", "gpu-1", "metadata labels nvidia.com/gpu.replicas", "4"), WARNING, "node/gpu-1",
        "offers each GPU 4 times", "take sharing out"),
    "a node's heartbeat from the future": (
        both(drop("leases", "gpu-1"), change("nodes", "gpu-1", "status conditions 0 lastHeartbeatTime", stamp(-60))),
        WARNING, "node/gpu-1", "60 s ahead", "NTP"),
    "a node's clock": (
        lambda seen: of(seen, "leases", "gpu-1")["spec"].update(renewTime=stamp(-40.0)), WARNING, "node/gpu-1",
        "ahead of the API server's", "NTP"),
    "a node's clock that is behind": (
        lambda seen: of(seen, "leases", "gpu-1")["spec"].update(renewTime=stamp(604.0)), ERROR, "node/gpu-1",
        "599 s behind", "NTP"),
    "a scheduler that has stopped": (
        lambda seen: of(seen, "leases", "kube-scheduler")["spec"].update(renewTime=stamp(600)), ERROR, "kube-scheduler",
        "for 600 s", "start it again"),
    "an API that is not available": (
        add("apiservices", thing("APIService", "v1beta1.metrics.k8s.io", status={"conditions": [
            {"type": "Available", "status": "False", "reason": "MissingEndpoints"}]})), WARNING,
        "apiservice/v1beta1.metrics.k8s.io", "MissingEndpoints", "kubectl delete apiservice"),
    "no such queue": (
        drop("localqueues", "vision"), ERROR, "localqueue/vision", "no LocalQueue of this name", "examples/kueue"),
    "a queue that is stopped": (
        change("clusterqueues", "training", "spec stopPolicy", "Hold"), ERROR, "clusterqueue/training",
        "stopPolicy: Hold",
        "kubectl patch clusterqueue/training"),
    "a queue that is not active": (
        change("localqueues", "vision", "status conditions 0", {"type": "Active", "status": "False", "message": "no"}),
        ERROR, "localqueue/vision", "it is not active: no", "kubectl describe -n vision"),
    "a queue to nowhere": (
        drop("clusterqueues", "training"), ERROR, "localqueue/vision", "ClusterQueue training, which does not exist",
        "create"),
    "a queue without enough quota": (
        change("clusterqueues", "training", "spec resourceGroups 0 flavors 0 resources 2 nominalQuota", "8"), ERROR,
        "clusterqueue/training", "its quota is 8 nvidia.com/gpu, and the PyTorchJob requests 16", "raise nominalQuota"),
    "a queue without GPUs": (
        change("clusterqueues", "training", "spec resourceGroups 0 flavors 0 resources", [
            {"name": name, "nominalQuota": "9000Gi"} for name in ("cpu", "memory")]),
        ERROR, "clusterqueue/training", "does not cover nvidia.com/gpu", "coveredResources"),
    "a queue of other namespaces": (
        change("clusterqueues", "training", "spec namespaceSelector", {"matchLabels": {"team": "red"}}), ERROR,
        "clusterqueue/training", "does not take namespace vision", "namespaceSelector"),
    "a flavor that is missing": (
        drop("resourceflavors", "gpu"), ERROR, "clusterqueue/training", "names the flavor gpu",
        "create ResourceFlavor gpu"),
    "a flavor of no nodes": (
        change("resourceflavors", "gpu", "spec nodeLabels", {"pool": "none"}), ERROR, "resourceflavor/gpu",
        "no node has its nodeLabels pool=none", "kubectl label node"),
    "Kueue that is down": (
        change("deployments", "kueue-controller-manager", "spec replicas", 0), ERROR,
        "deployment/kueue-controller-manager",
        "cannot even be created", "scale deployment/kueue-controller-manager"),
    "Kueue that does not manage this kind": (
        add("kueue-configuration", thing("ConfigMap", "c", data={"controller_manager_config.yaml":
            "integrations: {frameworks: [batch/job]}"})), ERROR, "kueue", "kubeflow.org/pytorchjob",
            "integrations.frameworks"),
    "no namespace": (
        lambda seen: seen.objects["namespace"].clear(), WARNING, "namespace/vision", "does not exist yet",
        "kubectl create namespace vision"),
    "a namespace that is going": (
        change("namespace", NAMESPACE, "metadata deletionTimestamp", stamp()), ERROR, "namespace/vision",
        "being deleted",
        "wait until it is gone"),
    "no service account": (
        drop("serviceaccounts", "default"), ERROR, "serviceaccount/default", "does not exist",
        "kube-controller-manager"),
    "a quota of GPUs": (
        quota("requests.nvidia.com/gpu", "8"), ERROR, "resourcequota/team",
        "it allows 8 requests.nvidia.com/gpu, and the run asks 16", "lower global.training.nodes or gpusPerNode"),
    "a quota of storage": (
        quota("requests.storage", "100Gi"), ERROR, "resourcequota/team",
        "it allows 100Gi requests.storage, and the run asks 400Gi",
        "lower size under global.storage"),
    "a quota of pods": (
        quota("pods", "2"), ERROR, "resourcequota/team", "it allows 2 pods, and the run asks 3", "raised to pods: 3"),
    "a quota of jobs": (
        quota("count/pytorchjobs.kubeflow.org", "0"), ERROR, "resourcequota/team", "count/pytorchjobs.kubeflow.org",
        "remove what is no longer used"),
    "a quota of limits that pods do not name": (
        quota("limits.cpu", "999"), ERROR, "resourcequota/team", "it counts limits.cpu, and container preflight",
        "set limits.cpu"),
    "a quota that is used up": (
        quota("requests.memory", "200Gi", "190Gi"), ERROR,
        "resourcequota/team", "of which 190Gi are used", "lower global.training.nodes or resources"),
    "a limit range below the request": (
        limit("Container", max={"memory": "8Gi"}, default={"memory": "8Gi"}), ERROR, "limitrange/team",
        "it allows 8Gi memory at most, and container preflight of the pytorchjob master has requests of 40Gi",
        "raise its max"),
    "a limit range with a low default": (
        limit("Container", default={"memory": "8Gi"}), ERROR, "limitrange/team", "below its request of 40Gi",
        "set limits.memory under global.training.resources"),
    "a limit range above the request": (
        limit("Container", min={"cpu": "32"}), ERROR, "limitrange/team", "it wants 32 cpu at least", "or more"),
    "a limit range of pods": (
        limit("Pod", max={"cpu": "4"}), ERROR, "limitrange/team", "a pod of the pytorchjob master has requests of 8",
        "or less"),
    "a limit range of claims": (
        limit("PersistentVolumeClaim", max={"storage": "10Gi"}), ERROR, "limitrange/team", "the claim doctor-data",
        "size of global.storage"),
    "a limit range of ratios": (
        limit("Container", maxLimitRequestRatio={"memory": "1"}), ERROR, "limitrange/team", "1 times the request",
        "raise requests"),
    "a policy without names": (
        policy("Egress"), ERROR, "networkpolicy/deny", "may not reach the name server", "port 53"),
    "a policy without peers": (
        policy("Egress", egress=[{"to": [{"namespaceSelector": {}}], "ports": [{"port": 53, "protocol": "UDP"}]}]),
        ERROR,
        "networkpolicy/deny", "may not reach each other", "networkPolicy.enabled: true"),
    "a webhook whose service is gone": (
        add(POLICY, clusters.hook("left-behind", "gone", "old", "pods")), ERROR,
        "validatingwebhookconfiguration/left-behind", "old/gone does not exist", "kubectl delete"),
    "a webhook without endpoints": (
        change("endpointslices", "training-operator-x", "endpoints", None), ERROR,
        "validatingwebhookconfiguration/pytorchjob", "no pod answers behind kubeflow/training-operator", "start what"),
    "a webhook without a certificate": (
        change(POLICY, "pytorchjob", "webhooks 0 clientConfig caBundle", ""), WARNING,
        "validatingwebhookconfiguration/pytorchjob", "has no caBundle", "cainjector"),
}  # fmt: skip


# Values of the run -> what is wrong with them on the sound cluster
ASKS: dict[str, tuple[dict, str, str, str, str]] = {
    "more GPUs than a node has": (
        values(global__training__gpusPerNode=16), ERROR, "pytorchjob", "Insufficient nvidia.com/gpu: 8 of 16",
        "global.training.gpusPerNode to what a node has, 8 at most"),
    "more nodes than there are": (
        values(global__training__nodes=4), ERROR, "pytorchjob", "room for 2 of 4 pods", "lower global.training.nodes"),
    "more memory than a node has": (
        values(global__training__resources={"requests": {"memory": "900Gi"}}), ERROR, "pytorchjob",
        "Insufficient memory: 512Gi of 900Gi", "lower memory under global.training.resources"),
    "no toleration": (
        values(global__scheduling={"queue": "vision"}), ERROR, "pytorchjob",
        "had untolerated taint nvidia.com/gpu=present:NoSchedule",
        "global.scheduling.tolerations: [{key: nvidia.com/gpu"),
    "labels that no node has": (
        values(global__scheduling__nodeSelector={"pool": "none"}), ERROR, "pytorchjob", "node affinity/selector",
        "correct global.scheduling.nodeSelector"),
    "an affinity that no node fits": (
        values(global__scheduling__affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["gpu"]}]}]}}}),
        ERROR, "pytorchjob", "node affinity/selector", "affinity"),
    "a device that no node has": (
        values(global__training__rdma={"resource": "rdma/ib"}), ERROR, "pytorchjob", "Insufficient rdma/ib: 0 of 1",
        "correct global.training.rdma.resource"),
    "a device that restricted refuses": (
        values(global__training__rdma={"resource": "rdma/ib"}), ERROR, "namespace/vision", "need privileged",
        "pod-security.kubernetes.io/enforce=privileged"),
    "a priority that is not there": (
        values(global__scheduling__priorityClassName="high"), ERROR, "priorityclass/high", "does not exist",
        "correct global.scheduling.priorityClassName"),
    "a queue's priority that is not there": (
        values(global__scheduling__queuePriority="high"), ERROR, "workloadpriorityclass/high", "does not exist",
        "correct global.scheduling.queuePriority"),
    "a runtime that is not there": (
        values(global__training__runtimeClassName="nvidia"), ERROR, "runtimeclass/nvidia", "does not exist",
        "GPU operator"),
    "a scheduler that is not there": (
        values(global__scheduling__schedulerName="volcano"), WARNING, "scheduler/volcano", "no deployment",
        "start volcano"),
    "an account that is not there": (
        values(global__serviceAccountName="trainer"), ERROR, "serviceaccount/trainer", "does not exist",
        "kubectl create serviceaccount trainer"),
    "a pull secret that is not there": (
        values(global__image__pullSecrets=["regcred"]), ERROR, "secret/regcred", "does not exist",
        "global.image.pullSecrets"),
    "certificates that are not there": (
        values(global__caBundle={"configMap": "company-ca"}), ERROR, "configmap/company-ca", "does not exist",
        "global.caBundle.configMap"),
    "a claim that is not there": (
        values(global__storage__data={"existingClaim": "shared"}), ERROR, "persistentvolumeclaim/shared",
        "does not exist",
        "correct existingClaim"),
    "a volume that is not there": (
        values(global__storage__data={"volumeName": "disk", "storageClass": "-"}), ERROR, "claim/doctor-data",
        "its volume disk does not exist", "global.storage.data.volumeName"),
    "no volume made by hand": (
        values(global__storage__data={"storageClass": "-"}), ERROR, "claim/doctor-data", "no volume is free",
        "PersistentVolume"),
    "a class that is not there": (
        values(global__storage__results={"storageClass": "fast"}), ERROR, "claim/doctor-results",
        "StorageClass fast does not exist", "global.storage.results.storageClass to one of nfs"),
    "a queue that is not there": (
        values(global__scheduling__queue="other"), ERROR, "localqueue/other", "no LocalQueue",
        "global.scheduling.queue: vision"),
    "an operator that is not there": (
        values(global__training__operator="trainjob"), ERROR, "crd/trainjobs.trainer.kubeflow.org", "does not know",
        "install Kubeflow Trainer 2.3.0"),
    "a gang without its scheduler": (
        values(global__scheduling__gang={"enabled": True}), ERROR, "deployment/training-operator", "no gang scheduler",
        "--gang-scheduler-name"),
    "values that the chart refuses": (
        values(global__training__nodes=0), ERROR, "values", "Please set: global.training.nodes", "correct the key"),
}  # fmt: skip


def test_a_sound_cluster_has_no_finding():
    checks = clusters.checks(sound(), clusters.asking(VALUES))
    assert [one for each in checks for one in each.wrong] == []
    assert [one.unproven for one in checks if one.unproven] == []
    assert all(one.sound for one in checks)


# No probe pod has resolved a name
NAMELESS: dict[str, tuple[Change, str, str, str, str]] = {
    "no name server": (
        drop("services", "kube-dns"), ERROR, "service/kube-dns", "there is no Service kube-dns", "install CoreDNS"),
    "a name server scaled to 0": (
        both(change("endpointslices", "kube-dns-x", "endpoints", []), change("deployments", "coredns", "spec replicas",
        0)),
        ERROR, "service/kube-dns", "scaled to 0", "scale deployment/coredns --replicas=2"),
    "a name server that does not answer": (
        change("endpointslices", "kube-dns-x", "endpoints 0 conditions ready", False), ERROR, "service/kube-dns",
        "no pod answers", "describe pods"),
}  # fmt: skip


@pytest.mark.parametrize("way", NAMELESS)
def test_a_name_server_that_cannot_answer_is_named_unless_a_pod_has_resolved_a_name(way):
    do, *expected = NAMELESS[way]
    check_named(do, *expected, shown=BOUND._replace(starts=[BOUND.starts[0]._replace(names="")]))
    seen = sound()
    do(seen)
    assert found(seen) == []


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_named_with_a_remedy(way):
    wrong = check_named(*WAYS[way])
    assert all(one.remedy and one.seen for one in wrong)


@pytest.mark.parametrize("ask", ASKS)
def test_what_a_run_asks_in_vain_is_named_with_a_remedy(ask):
    asked, level, name, words, remedy = ASKS[ask]
    wrong = found(sound(), asked)
    assert any(
        (one.level, one.object) == (level, name) and words in one.seen and remedy in one.remedy for one in wrong
    ), wrong
    assert all(one.remedy for one in wrong)


def with_trainer(version: str, jobset: str) -> ClusterSurvey:
    """Return the cluster with a Kubeflow Trainer, whose CRD lacks what it lacks, and its JobSet."""
    seen = sound()
    of_trainer = {"kubeflow_trainer_version": f"v{version}"}
    seen.objects["trainer-version"] = [
        thing("ConfigMap", "kubeflow-trainer-public", "kubeflow-system", data=of_trainer)
    ]
    seen.objects["deployments"] += [
        clusters.deployment("trainer", "kubeflow-system", f"kubeflow/trainer-controller-manager:v{version}"),
        clusters.deployment("jobset", "jobset-system", f"jobset/jobset-controller:v{jobset}"),
    ]
    for kind in (trainjobs.TRAINJOBS, trainjobs.RUNTIMES, trainjobs.JOBSETS):
        crd = clusters.definition(kind)
        if kind == trainjobs.TRAINJOBS and versions.minor(version) < (2, 2):
            known = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            for field in crds.OF_TRAINER_2_2:
                known.pop(field, None)
        seen.objects["customresourcedefinitions"].append(crd)
    return seen


def written_for(version: str) -> dict:
    return values(global__training__operator="trainjob") | ({"trainjob": {"version": version}} if version else {})


@pytest.mark.parametrize(("there", "jobset"), [("2.1.0", "0.10.1"), ("2.2.1", "0.11.1"), ("2.3.0", "0.12.0")])
def test_a_run_that_is_written_for_the_clusters_trainer_fits(there, jobset):
    minor = there.rpartition(".")[0]
    assert clusters.found(with_trainer(there, jobset), written_for(minor)) == []


def test_a_trainer_for_which_the_run_is_not_written_is_named():
    said = clusters.found(with_trainer("2.1.0", "0.10.1"), written_for(""))
    named = next(one for one in said if one.object == "kubeflow-trainer")
    assert named.level == ERROR
    assert named.remedy.startswith('set trainjob.version: "2.1", or update Kubeflow Trainer to 2.3.0')
    (named,) = clusters.found(with_trainer("2.3.0", "0.12.0"), written_for("2.1"))
    assert "is v2.3.0, and trainjob.version is 2.1" in named.seen
    assert "set trainjob.version to the cluster's" in named.remedy


def test_a_proposal_names_the_version_of_an_earlier_trainer():
    seen = with_trainer("2.2.1", "0.11.1")
    seen.objects["deployments"] = [
        one for one in seen.objects["deployments"] if one["metadata"]["name"] in ("trainer", "jobset")
    ]
    lines = {one.path: one.value for one in proposal.operator(seen, clusters.asking(VALUES))}
    assert (lines["global.training.operator"], lines["trainjob.version"]) == ("trainjob", "2.2")


# Deployment, its image -> level and words of what is seen; none where that version was tested
OTHERS: dict[tuple[str, str], tuple[str, str]] = {
    ("mpi-operator", "x/mpi-operator:0.9.1"): (NOTE, "and was not tested; the nearest version that was is 0.8.2"),
    ("mpi-operator", "x/mpi-operator:v0.6.0"): (NOTE, "is 0.6.0, older than the 0.7 that was tested"),
    ("mpi-operator", "x/mpi-operator:v0.7.2"): ("", ""),
    ("kueue-controller-manager", "x/kueue:v0.20.0"): (NOTE, "the nearest version that was is 0.19"),
    ("kueue-controller-manager", "x/kueue:v0.19.2"): ("", ""),
    ("training-operator", "x/training-operator:v1.9.9"): ("", ""),
    ("training-operator", "x/training-operator:v1.10.0"): (NOTE, "the nearest version that was is 1.9.4"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "image"), OTHERS)
def test_a_version_that_was_not_tested_is_named_with_the_nearest_that_was(name, image):
    level, words = OTHERS[name, image]
    seen = sound()
    change("deployments", name, "spec template spec containers 0 image", image)(seen)
    named = found(seen)
    assert [(one.level, one.object) for one in named] == [(level, f"deployment/{name}")] * bool(level)
    assert all(words in one.seen for one in named)
    assert all(("kubectl apply" in one.remedy) == ("older" in one.seen) for one in named), "nothing is put back"


def test_a_newer_trainer_is_a_warning_since_each_minor_version_has_changed_its_api():
    (named,) = clusters.found(with_trainer("2.4.0", "0.12.0"), written_for(""))
    assert (named.level, named.object) == (WARNING, "deployment/trainer")
    assert "is 2.4.0, and was not tested; the nearest version that was is 2.3.0, and each minor version" in named.seen


# The Go module of each operator, and its folder in hack/versions/*/
MODULES = {
    "training-operator": "github.com/kubeflow/training-operator", "mpi-operator": "github.com/kubeflow/mpi-operator",
    "trainer": "github.com/kubeflow/trainer/v2", "jobset": "sigs.k8s.io/jobset", "kueue": "sigs.k8s.io/kueue",
}  # fmt: skip


def test_the_versions_that_it_calls_tested_are_those_that_are_built():
    def built(program, place):
        return re.search(rf"^\s*{MODULES[program]} v(\S+)", place.read_text(), re.M)[1]

    for program, operator in zip(MODULES, (*operators.FOR["PyTorchJob"], *operators.FOR["MPIJob"],
                                           *operators.FOR["TrainJob"], operators.KUEUE), strict=True):  # fmt: skip
        others = [built(program, one) for one in ROOT.glob(f"hack/versions/*/{program}/go.mod")]
        assert operator.tested == built(program, ROOT / "hack/programs/go.mod"), program
        assert set(operator.others) == {one.rpartition(".")[0] for one in others}, program


def test_a_proposal_names_the_operators_that_run_beside_the_one_it_takes():
    seen = with_trainer("2.3.0", "0.12.0")
    why = {one.path: one.why for one in proposal.operator(seen, clusters.asking(VALUES))}["global.training.operator"]
    assert why.startswith("training-operator 1.9.4 runs in namespace kubeflow; or mpijob or trainjob, which runs here")
    drop("deployments", "trainer")(seen)
    drop("deployments", "mpi-operator")(seen)
    why = {one.path: one.why for one in proposal.operator(seen, clusters.asking(VALUES))}["global.training.operator"]
    assert why == "training-operator 1.9.4 runs in namespace kubeflow"


def test_a_run_whose_operator_is_missing_is_told_of_one_that_is_there():
    def remedy(seen: ClusterSurvey, operator: str) -> str:
        named = clusters.found(seen, values(global__training__operator=operator))
        return next(one.remedy for one in named if one.object == f"crd/{operator}s.kubeflow.org")

    seen = with_trainer("2.3.0", "0.12.0")
    drop(CRD, "pytorchjobs.kubeflow.org")(seen)
    said = remedy(seen, "pytorchjob")
    assert said.startswith("set global.training.operator: mpijob or trainjob, which is here (docs/operators.md), or ")
    assert "install training-operator 1.9.4" in said
    drop("deployments", "mpi-operator")(seen)
    assert remedy(seen, "pytorchjob").startswith("set global.training.operator: trainjob, which is here")
    drop("deployments", "trainer")(seen)
    assert remedy(seen, "pytorchjob").startswith("install training-operator 1.9.4")
    seen = with_trainer("2.3.0", "0.12.0")
    drop(CRD, "mpijobs.kubeflow.org")(seen)
    assert "pytorchjob or trainjob, which is here (docs/operators.md; to keep Horovod there, strategy: horovod)" in (
        remedy(seen, "mpijob")
    )


def test_a_cluster_of_an_old_version_is_named():
    one = next(one for one in found(sound()._replace(version="v1.28.3")) if one.object == "kubernetes")
    assert one.level == ERROR
    assert "1.29 or later" in one.seen


def test_an_api_server_that_is_not_ready_is_named():
    (one,) = found(sound()._replace(failing="etcd"))
    assert (one.level, one.object, one.seen) == (ERROR, "api server", "it is not ready: etcd")


@pytest.mark.parametrize(
    ("denied", "operator", "level", "words"),
    [
        (("training-operator", "create pods"), "pytorchjob", ERROR, "give it its own role back"),
        (("mpi-operator", "create jobs.batch"), "pytorchjob", WARNING, "give it its own role back"),
        (("mpi-operator", "update jobs/status.batch"), "mpijob", WARNING, "examples/kueue/mpi-operator.yaml"),
    ],
)
def test_an_operator_that_lacks_a_right_is_named(denied, operator, level, words):
    seen = sound()._replace(denied=frozenset([denied]))
    (one,) = found(seen, values(global__training__operator=operator))
    assert (one.level, one.object) == (level, f"deployment/{denied[0]}")
    assert words in one.remedy


@pytest.mark.parametrize(("ahead", "level"), [(0.0, ""), (-4.0, ""), (20.0, WARNING), (-400.0, ERROR)])
def test_this_machines_clock_is_compared(ahead, level):
    assert [one.level for one in found(sound()._replace(ahead=ahead))] == [level] * bool(level)


def test_no_default_class_and_no_class_at_all():
    seen = sound()
    of(seen, "storageclasses", "nfs")["metadata"]["annotations"] = {}
    asked = values(global__storage={})
    one = next(one for one in found(seen, asked) if one.object == "claim/doctor-data")
    assert "no default one" in one.seen
    assert "set global.storage.data.storageClass to one of nfs" in one.remedy
    seen.objects["storageclasses"] = []
    one = next(one for one in found(seen, asked) if one.object == "claim/doctor-data")
    assert "install a storage driver" in one.remedy


def test_claims_that_exist_are_looked_at():
    asked, seen = values(global__storage__data={"existingClaim": "shared"}), sound()
    claim = thing(
        "PersistentVolumeClaim", "shared", NAMESPACE, spec={"accessModes": ["ReadWriteOnce"]}, status={"phase": "Bound"}
    )
    seen.objects["persistentvolumeclaims"] = [claim]
    (one,) = found(seen, asked)
    assert "on several nodes" in one.seen
    claim["spec"]["accessModes"] = ["ReadWriteMany"]
    assert found(seen, asked) == []
    claim["status"]["phase"] = "Lost"
    assert "its volume is gone" in found(seen, asked)[0].seen


def test_volumes_made_by_hand_are_compared_with_the_claim():
    asked, seen = values(global__storage__data={"volumeName": "disk", "storageClass": "-", "size": "10Gi"}), sound()
    spec = {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"]}
    seen.objects["persistentvolumes"] = [thing("PersistentVolume", "disk", spec=spec, status={"phase": "Bound"})]
    (one,) = found(seen, asked)
    assert "is Bound, has ReadWriteOnce, has 5Gi" in one.seen
    spec |= {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteMany"]}
    seen.objects["persistentvolumes"][0]["status"] = {"phase": "Available"}
    assert found(seen, asked) == []


SAID = "NodePath only supports ReadWriteOnce"
FAILED = Probe("nfs", "ReadWriteMany", False, 7.0, SAID)


@pytest.mark.parametrize(("left", "remedy"), [(1, "ceph, which binds ReadWriteMany"), (9, "see its provisioner")])
def test_a_class_of_one_nodes_folders_is_proposed_where_there_is_one_node(left, remedy):
    seen, folders = sound(), Probe("ceph", "ReadWriteMany", True, 1.0, place=FOLDER)
    seen.objects["nodes"] = seen.objects["nodes"][:left]
    first = found(seen, values(global__training__nodes=2), BOUND._replace(claims=[FAILED, folders]))
    assert any(one.object == "claim/doctor-data" and remedy in one.remedy for one in first), first


@pytest.mark.parametrize(
    ("more", "nodes", "remedy"),
    [
        (
            [Probe("ceph", "ReadWriteMany", True, 1.0)],
            2,
            "global.storage.data.storageClass: ceph, which binds ReadWriteMany",
        ),
        ([Probe("nfs", "ReadWriteOnce", True, 1.0)], 1, "global.storage.data.accessModes: [ReadWriteOnce]"),
        ([Probe("nfs", "ReadWriteOnce", True, 1.0)], 2, "install a StorageClass that shares volumes"),
        ([], 2, "see its provisioner"),
    ],
)
def test_a_class_that_does_not_bind_is_named_with_what_does(more, nodes, remedy):
    asked = values(global__training__nodes=nodes)
    one, two = found(sound(), asked, BOUND._replace(claims=[FAILED, *more]))
    assert (one.level, one.object, two.object) == (ERROR, "claim/doctor-data", "claim/doctor-results")
    assert f"has not bound a ReadWriteMany claim in 7 s: {SAID}" in one.seen
    assert remedy in one.remedy


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("ErrImagePull: r/x: not found", "push it"),
        ("ErrImagePull: pull access denied, 401 Unauthorized", "name a pull secret"),
        ("ErrImagePull: failed to pull: dial tcp: lookup r: no such host", "do not reach the registry"),
        ("StartError exec format error", "for other CPUs"),
    ],
)
def test_an_image_that_does_not_start_is_named(said, remedy):
    start = BOUND.starts[0]._replace(started=False, said=said)
    (one,) = found(sound(), VALUES, BOUND._replace(starts=[start]))
    assert (one.level, one.object, one.seen) == (ERROR, f"image {start.image}", f"it does not start: {said}")
    assert remedy in one.remedy


def test_names_that_do_not_resolve_in_a_pod_are_named_unless_the_cause_is():
    silent = BOUND._replace(starts=[BOUND.starts[0]._replace(names="no")])
    (one,) = found(sound(), VALUES, silent)
    assert (one.level, one.object) == (ERROR, "dns")
    seen = sound()
    drop("services", "kube-dns")(seen)
    assert [one.object for one in found(seen, VALUES, silent)] == ["service/kube-dns"]


def test_what_is_not_proven_is_no_finding():
    shown = probes.NOTHING._replace(why="nothing is created with --no-probe")
    checks = clusters.checks(sound(), clusters.asking(VALUES), shown)
    assert [one for each in checks for one in each.wrong] == []
    told = [text for each in checks for text in each.unproven]
    assert told == [
        "whether a class binds the claims: nothing is created with --no-probe",
        "whether nodes pull the image: nothing is created with --no-probe",
    ]


@pytest.mark.parametrize(
    "kind", [*sound().objects, "pods", "resourcequotas", "limitranges", "networkpolicies", "priorityclasses"]
)
def test_what_this_user_may_not_look_at_is_said_and_nothing_else_is_wrong(kind):
    seen = sound()
    seen.objects.pop(kind, None)
    seen.unseen[kind] = "forbidden"
    (one,) = found(seen, values(global__scheduling__queuePriority="deadline"))
    assert (one.level, one.object, one.seen) == (NOTE, kind, f"could not look at {kind} (forbidden)")


@pytest.mark.parametrize(("text", "name", "remedy"), [
    ('pods "doctor-x" is forbidden: violates PodSecurity "restricted:latest": IPC_LOCK', "all", "IPC_LOCK"),
    ('admission webhook "rules.example.com" denied the request: no team label', "all", "a rule of the cluster"),
    ('failed calling webhook "v1.example.com": connection refused', "all",
        "start what answers the webhook v1.example.com"),
    ('secrets is forbidden: User "u" cannot create resource "secrets" in API group ""', "all",
        "a role that may create secrets"),
])  # fmt: skip
def test_what_admission_refuses_is_named(text, name, remedy):
    checks = doctor.diagnose(sound(), clusters.asking(VALUES), [trials.Answer(name, text, 403)], BOUND)
    (one,) = [one for each in checks for one in each.wrong]
    assert (one.level, one.object) == (ERROR, name)
    assert remedy in one.remedy


def test_a_refusal_that_another_check_has_named_is_not_repeated():
    seen = sound()
    quota("pods", "2")(seen)
    text = 'pods "doctor-x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2'
    checks = doctor.diagnose(seen, clusters.asking(VALUES), [trials.Answer("pods", text, 403)], BOUND)
    assert [one.object for each in checks for one in each.wrong] == ["resourcequota/team"]


def test_a_webhook_that_was_late_once_is_asked_again(monkeypatch):
    late = 'failed calling webhook "a.example.com": failed to call webhook: Post "https://a": context deadline exceeded'
    answers = [late, "", late, late, "denied the request"]

    def read(*_, **__):
        if said := answers.pop(0):
            raise RefusedError(500, said)

    monkeypatch.setattr(trials, "address", lambda *_: "/api/v1/pods")
    monkeypatch.setattr(trials.kube, "read", read)
    assert [trials.attempt("all", {}, "team").text for _ in range(3)] == ["", late, "denied the request"]


def test_a_webhook_without_dry_run_proves_nothing():
    text = 'admission webhook "x" does not support dry run'
    checks = doctor.diagnose(sound(), clusters.asking(VALUES), [trials.Answer("all", text, 400)], BOUND)
    assert [one for each in checks for one in each.wrong] == []
    assert any("does not support dry run" in text for each in checks for text in each.unproven)
