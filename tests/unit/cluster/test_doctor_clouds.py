"""doctor on sound clusters of common kinds, of clouds, OpenShift and Kueue: what is usual there is no finding."""

import copy

import pytest

from tests.unit.cluster import clusters
from tests.unit.cluster.changes import Change, add, both, change, drop, of, policy, values
from tests.unit.cluster.clusters import BOUND, NAMESPACE, VALUES, deployment, found, sound, stamp, thing
from trainyard.cluster import doctor, proposal, survey
from trainyard.cluster.checks import nodes, references
from trainyard.cluster.checks.diagnosis import ERROR, WARNING

UNASKED = BOUND._replace(starts=[BOUND.starts[0]._replace(names="")])  # no pod has resolved a name
GIVEN: dict = VALUES
UNQUEUED = values(global__scheduling={"tolerations": GIVEN["global"]["scheduling"]["tolerations"]})
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "nics"}
CLAIMED = values(global__training__resourceClaims=[CLAIM])
FILES = GIVEN | {"filebrowser": {"enabled": True, "auth": {"password": "not-a-password"},
                                  "ingress": {"enabled": True, "host": "files.example.com"}}}  # fmt: skip
WEB = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}], "ports": [{"port": 443}]}
DNS = {"to": [{"namespaceSelector": {}}], "ports": [{"port": 53, "protocol": "UDP"}]}
PODS = add("pods", thing("Pod", "web", "team", spec={}, status={"podIP": "10.4.7.9"}))


def further(thing: dict, asked: dict = CLAIMED) -> dict:
    """Return values whose release makes an object more."""
    return asked | {"extraObjects": [thing]}


def openshift(name: str = "openshift-dns") -> Change:
    """Return a change by which names are answered as on OpenShift: in another namespace, on pods' port 5353."""

    def do(seen: survey.ClusterSurvey) -> None:
        drop("services", "kube-dns")(seen)
        spec = {"selector": {"dns.operator.openshift.io/daemonset-dns": "default"}, "ports": [{"port": 53}]}
        slices = clusters.endpoints("dns-default", name) | {"ports": [{"port": 5353, "name": "dns"}]}
        both(add("services", thing("Service", "dns-default", name, spec=spec)), add("endpointslices", slices))(seen)

    return do


def egress(*rules: dict) -> Change:
    return policy("Egress", egress=[*rules])


def named(space: str, port: int | str) -> dict:
    """Return a rule for a port of the pods of a namespace."""
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space}}}
    return {"to": [peer], "ports": [{"port": port, "protocol": "UDP"}]}


def blocks(*cidrs: str) -> dict:
    return {"to": [{"ipBlock": {"cidr": one}} for one in cidrs]}


def kueue(text: str) -> Change:
    held = {"controller_manager_config.yaml": text}
    return add("kueue-configuration", thing("ConfigMap", "kueue-manager-config", "kueue-system", data=held))


def offering(**amounts: str) -> Change:
    """Return a change by which the GPU nodes offer more, in a namespace that enforces no Pod Security level."""

    def do(seen: survey.ClusterSurvey) -> None:
        for name in ("gpu-1", "gpu-2"):
            for part in ("capacity", "allocatable"):
                of(seen, "nodes", name)["status"][part] |= {key.replace("__", "/"): n for key, n in amounts.items()}
        seen.objects["namespace"][0]["metadata"]["labels"] = {}

    return do


def second_flavor(seen: survey.ClusterSurvey) -> None:
    """Give the ClusterQueue a second flavor of the same resources, of nodes that are not there now."""
    group = of(seen, "clusterqueues", "training")["spec"]["resourceGroups"][0]
    group["flavors"].append(copy.deepcopy(group["flavors"][0]) | {"name": "spot"})
    spec = {"nodeLabels": {"pool": "spot"}}
    seen.objects["resourceflavors"].append(thing("ResourceFlavor", "spot", api="kueue.x-k8s.io/v1beta2", spec=spec))


def two_jobs(seen: survey.ClusterSurvey) -> None:
    """Give the queue as much memory as the larger of two Jobs asks, and not as both do."""
    resources = of(seen, "clusterqueues", "training")["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    resources[1]["nominalQuota"] = "90Gi"


DEVICES = {"requests": [{"name": "nic", "exactly": {"deviceClassName": "rdma"}}]}


def unplugged(seen: survey.ClusterSurvey) -> None:
    """Take the device plugin's resource from the GPU nodes, and their taint."""
    for name in ("gpu-1", "gpu-2"):
        for part in ("capacity", "allocatable"):
            del of(seen, "nodes", name)["status"][part]["nvidia.com/gpu"]


other_pods = clusters.hook("azure-wi-webhook", "gone", "kube-system", "pods") | {"kind": "MutatingWebhookConfiguration"}
other_pods["webhooks"][0]["objectSelector"] = {"matchLabels": {"azure.workload.identity/use": "true"}}
BY_CLAIMS = values(global__training__gpusBy="claims", global__training__resourceClaims=[CLAIM])
TEMPLATE = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "nics"},
            "spec": {"spec": {"devices": DEVICES}}}  # fmt: skip
DOMAIN = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "domain"},
          "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "nics"}}}}  # fmt: skip
PRIORITY = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "fast"}, "value": 1}
QUEUE = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "own"},
         "spec": {"clusterQueue": "training"}}  # fmt: skip
BEFORE = copy.deepcopy(FILES)
BEFORE["filebrowser"]["ingress"] |= {"annotations": {"kubernetes.io/ingress.class": "gce"}}
LARGE = {"requests": {"cpu": "2", "memory": "60Gi"}, "limits": {"memory": "60Gi"}}
BOTH_JOBS = GIVEN | {
    "dataset": GIVEN["dataset"] | {"resources": LARGE},
    "evaluate": {"enabled": True, "resources": LARGE},
}

SOUND: dict[str, tuple[Change, dict]] = {
    "EKS Auto Mode has no Service of a name server": (
        both(drop("services", "kube-dns"),
             change("nodes", "gpu-1", "metadata labels eks.amazonaws.com/compute-type", "auto")), VALUES),
    "OpenShift's name server": (
        both(openshift(), egress(named("openshift-dns", 5353), {"to": [{"podSelector": {}}]}, WEB)), VALUES),
    "a name server's port by its name": (
        both(openshift(), egress(named("openshift-dns", "dns"), {"to": [{"podSelector": {}}]}, WEB)), VALUES),
    "a name server by another label of its namespace": (
        egress({"to": [{"namespaceSelector": {"matchLabels": {"name": "kube-system"}}}], "ports": [{"port": 53}]},
               {"to": [{"podSelector": {}}]}, WEB), VALUES),
    "a name server's cache on each node": (
        egress(blocks("169.254.20.10/32"), {"to": [{"podSelector": {}}]}, WEB), VALUES),
    "the addresses of pods": (both(PODS, egress(blocks("10.0.0.0/8"), DNS, WEB)), VALUES),
    "an object store of the cluster": (
        both(add("services", thing("Service", "minio", "storage", spec={})),
             egress({"to": [{"namespaceSelector": {}}]})),
        values(dataset__source={"url": "s3://pictures/all.zip", "endpoint": "http://minio.storage:9000"})),
    "a ServiceAccount that the release makes": (
        add("pods"), values(global__training__serviceAccount={"create": True})),
    "a template of claims that the release makes": (add("pods"), further(TEMPLATE)),
    "a template that a ComputeDomain of the release makes": (add("pods"), further(DOMAIN)),
    "a PriorityClass that the release makes": (
        add("pods"), further(PRIORITY, values(global__scheduling__priorityClassName="fast"))),
    "a LocalQueue that the release makes": (
        add("pods"), further(QUEUE, values(global__scheduling__queue="own"))),
    "an Ingress of GKE's": (change("nodes", "cpu-1", f"metadata labels {references.GKE}", "default-pool"), FILES),
    "an Ingress of OpenShift's": (
        add(references.INGRESSES, thing("IngressClass", "openshift-default", spec={"controller": references.ROUTER})),
        FILES),
    "an Ingress whose class an annotation names": (add("pods"), BEFORE),
    "a class that binds at once, whose driver tells no room": (
        change("csidrivers", "nfs.csi.k8s.io", "spec", {"storageCapacity": True}), VALUES),
    "jobs of other namespaces are Kueue's": (
        kueue("manageJobsWithoutQueueName: true\nmanagedJobsNamespaceSelector:\n  matchLabels: {kueue: 'true'}\n"),
        UNQUEUED),
    "devices that Kueue does not count": (
        both(offering(rdma__ib="8"), kueue("resources: {excludeResourcePrefixes: [rdma/]}")),
        values(global__training__rdma={"resource": "rdma/ib"})),
    "a queue for one Job after the other": (two_jobs, BOTH_JOBS),
    "GPUs that a driver of claims brings": (
        both(unplugged, add(references.CLAIMS["resourceClaimTemplateName"], thing("ResourceClaimTemplate", "nics")),
             add(references.CLASSES)), BY_CLAIMS),
    "RDMA by claims": (
        both(offering(rdma__ib="8"), add(references.CLAIMS["resourceClaimTemplateName"], thing(
            "ResourceClaimTemplate", "nics"))), values(
            global__training__resourceClaims=[CLAIM], global__training__rdma={"by": "claims"})),
    "a webhook that nobody answers, for other pods": (
        add("mutatingwebhookconfigurations", other_pods), VALUES),
    "a claim of one node's pods, on one node": (
        both(drop("nodes", "gpu-2"), drop("nodes", "cpu-1"),
             change("nodes", "gpu-1", "status allocatable nvidia.com/gpu", "16"),
             change("nodes", "gpu-1", "status capacity nvidia.com/gpu", "16"),
             change("nodes", "gpu-1", "metadata labels nvidia.com/gpu.count", "16"),
             add("persistentvolumeclaims", thing("PersistentVolumeClaim", "shared", NAMESPACE, spec={
                 "accessModes": ["ReadWriteOnce"]}, status={"phase": "Bound"}))),
        values(global__storage__data={"existingClaim": "shared"})),
    "a pod that waits for its finalizers alone": (
        add("pods", thing("Pod", "gated", "team", metadata={"deletionTimestamp": stamp(4000)}, spec={"containers": [
            {"resources": {"requests": {"nvidia.com/gpu": "8"}}}]})), VALUES),
    "prepared data on a claim that is full": (
        both(add("persistentvolumeclaims", thing("PersistentVolumeClaim", "shared", NAMESPACE, spec={
            "accessModes": ["ReadWriteMany"]}, status={"phase": "Bound"})),
            add("volume-usage", {"claim": "shared", "capacityBytes": 100, "availableBytes": 1})),
        values(global__storage__data={"existingClaim": "shared", "readOnly": True}, dataset={"enabled": False})),
}  # fmt: skip


@pytest.mark.parametrize("way", SOUND)
def test_what_is_usual_is_no_finding(way):
    do, asked = SOUND[way]
    seen = sound()
    do(seen)
    assert found(seen, asked, UNASKED) == []


@pytest.mark.parametrize(("rules", "words", "remedy"), [
    ([named("kube-system", 53), {"to": [{"podSelector": {}}]}, WEB], "may not reach the name server",
        "allow egress to openshift-dns on port 5353, UDP and TCP, or set networkPolicy.enabled: true, which does, with "
        "networkPolicy.dns and dnsPort for it"),
    ([named("openshift-dns", 5353), WEB], "may not reach each other", "on all ports"),
])  # fmt: skip
def test_what_a_policy_closes_is_named_with_the_clusters_own_name_server(rules, words, remedy):
    seen = sound()
    both(openshift(), PODS, egress(*rules))(seen)
    first = found(seen)[0]
    assert (first.level, first.object) == (ERROR, "networkpolicy/deny")
    assert words in first.seen
    assert remedy in first.remedy


def test_a_policy_of_the_release_itself_is_examined():
    seen = sound()
    openshift()(seen)
    asked = VALUES | {"networkPolicy": {"enabled": True}}
    assert "may not reach the name server" in found(seen, asked)[0].seen
    spaces = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}]
    assert found(seen, VALUES | {"networkPolicy": {"enabled": True, "dns": spaces, "dnsPort": 5353}}) == []


def test_the_remedy_of_a_closed_source_opens_its_port():
    seen = sound()
    egress({"to": [{"namespaceSelector": {}}]})(seen)
    (one,) = found(seen, values(dataset__source={"url": "https://data.example.com:8443/a.zip"}))
    assert one.remedy == "allow egress to it on its port 8443"


@pytest.mark.parametrize("adds", [
    add("autoscaler", {"metadata": {"name": "Karpenter"}}),
    add("autoscaler", {"metadata": {"name": survey.AUTOSCALER}}),
    add("deployments", deployment("cluster-autoscaler-default", "openshift-machine-api", "ca:v1")),
])  # fmt: skip
def test_a_pool_without_nodes_stops_no_run_where_something_adds_them(adds):
    seen = sound()
    both(drop("nodes", "gpu-1"), drop("nodes", "gpu-2"))(seen)
    assert {one.level for one in found(seen)} == {ERROR}
    adds(seen)
    room, flavor = found(seen)
    assert (room.level, flavor.level) == (WARNING, WARNING)
    assert f"; {seen.autoscaler()} may add nodes" in room.seen
    assert f"see that a pool of {seen.autoscaler()} has such nodes" in room.remedy
    assert flavor.remedy.startswith(f"see that {seen.autoscaler()} adds nodes with these labels")


def test_nodes_whose_taint_the_run_does_not_tolerate_stop_it_though_something_adds_more():
    seen = sound()
    add("autoscaler", {"metadata": {"name": "Karpenter"}})(seen)
    (one,) = found(seen, values(global__scheduling__tolerations=[], global__scheduling__queue=""))
    assert (one.level, one.object) == (ERROR, "pytorchjob")
    assert "nvidia.com/gpu" in one.remedy


def test_a_flavor_without_nodes_beside_one_that_has_them_is_a_warning():
    seen = sound()
    second_flavor(seen)
    (one,) = found(seen)
    assert (one.level, one.object) == (WARNING, "resourceflavor/spot")


def test_a_proposal_for_an_earlier_trainer_is_written(tmp_path):
    seen = sound()
    for kind in ("trainjobs.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org"):
        seen.objects["customresourcedefinitions"].append(clusters.definition(kind))
    trainer = deployment("trainer", "kubeflow-system", "kubeflow/trainer-controller-manager:v2.1.0")
    seen.objects["deployments"] = [trainer]
    seen.objects["trainer-version"] = [{"data": {"kubeflow_trainer_version": "v2.1.0"}}]
    file = tmp_path / "fits.yaml"
    file.write_text(proposal.write(seen, clusters.asking(VALUES), BOUND.claims))
    made = clusters.demand.read_values([str(file)])
    assert made["trainjob"] == {"version": "2.1"}
    assert clusters.asking(made).refused == ""


@pytest.mark.parametrize(("level", "offered"), [("restricted", False), ("baseline", False), ("privileged", True)])
def test_a_proposal_has_rdma_where_the_namespace_admits_it(level, offered):
    seen = sound()
    offering(rdma__ib="8")(seen)
    seen.objects["namespace"][0]["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": level}
    lines = {one.path: one.value for one in proposal.training(seen, clusters.asking(VALUES), 2)}
    assert ("global.training.rdma.resource" in lines) is offered
    asked = values(global__training__rdma={"resource": "rdma/ib"}, global__scheduling__queue="")
    assert ([one.level for one in found(seen, asked)] == []) is offered


def test_a_proposal_asks_for_all_of_a_nodes_efa():
    seen = sound()
    offering()(seen)
    for name, count in (("gpu-1", "32"), ("gpu-2", "16")):
        of(seen, "nodes", name)["status"]["allocatable"]["vpc.amazonaws.com/efa"] = count
    lines = {one.path: one.value for one in proposal.training(seen, clusters.asking(VALUES), 2)}
    assert (lines["global.training.rdma.resource"], lines["global.training.rdma.count"]) == (
        "vpc.amazonaws.com/efa",
        16,
    )


def test_a_proposal_asks_for_one_of_gpus_that_are_shared():
    seen = sound()
    for name in ("gpu-1", "gpu-2"):
        of(seen, "nodes", name)["metadata"]["labels"] |= {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}
    lines = {one.path: one.value for one in proposal.training(seen, clusters.asking(VALUES), 2)}
    assert lines["global.training.gpusPerNode"] == 1
    assert nodes.distinct_gpus("nvidia.com/gpu.shared", 4, []) == 1
    assert nodes.distinct_gpus("nvidia.com/gpu", 4, []) == 4


def test_a_namespace_that_this_user_may_not_read_is_tried():
    seen = sound()
    seen.objects["namespace"] = []
    assert not doctor.takes_objects(seen)
    seen.unseen["namespace"] = "forbidden"
    assert doctor.takes_objects(seen)
