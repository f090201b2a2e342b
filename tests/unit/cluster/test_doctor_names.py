"""doctor on what a run names and counts: secrets, configmaps, stores, devices, ingresses, quotas, flavors, sources."""

import copy

import pytest

from tests.unit.cluster import clusters
from tests.unit.cluster.changes import Change, add, both, change, check_named, of, policy, quota, values
from tests.unit.cluster.clusters import NAMESPACE, VALUES, found, sound, thing
from trainyard.cluster import survey
from trainyard.cluster.checks import references
from trainyard.cluster.checks.diagnosis import ERROR, WARNING

KUEUE = "kueue.x-k8s.io/v1beta2"
STORE = {
    "secrets": {
        "enabled": True,
        "external": {"store": {"kind": "SecretStore", "name": "vault"}, "wandb": {"remoteKey": "team/wandb"}},
    }
}
NICS = values(global__training__resourceClaims=[{"name": "nic", "resourceClaimTemplateName": "nics"}])
FILES = VALUES | {"filebrowser": {"enabled": True, "auth": {"password": "not-a-password"},
                                  "ingress": {"enabled": True, "host": "files.example.com"}}}  # fmt: skip
SECRETS = references.STORES["SecretStore"]
TEMPLATES = references.CLAIMS["resourceClaimTemplateName"]


def store(status: str) -> Change:
    held = {"conditions": [{"type": "Ready", "status": status, "message": "permission denied"}]}
    return add(SECRETS, thing("SecretStore", "vault", NAMESPACE, status=held))


def template(of_class: str) -> Change:
    asked = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": of_class}}]}}
    return add(TEMPLATES, thing("ResourceClaimTemplate", "nics", NAMESPACE, spec={"spec": asked}))


def secret(kind: str) -> Change:
    return add("secrets", {"metadata": {"name": "regcred"}, "type": kind})


def configmap(**data: str) -> Change:
    return add("configmaps", thing("ConfigMap", "company", NAMESPACE, data=data))


def flavors(**amounts: str) -> Change:
    """Return a change by which the ClusterQueue has flavors of these names, each with so many GPUs."""

    def do(seen: survey.ClusterSurvey) -> None:
        group = of(seen, "clusterqueues", "training")["spec"]["resourceGroups"][0]
        first = group["flavors"][0]
        group["flavors"] = []
        for name, number in amounts.items():
            one = copy.deepcopy(first) | {"name": name}
            one["resources"][2]["nominalQuota"] = number
            group["flavors"].append(one)
        kinds = [thing("ResourceFlavor", name, api=KUEUE, spec={}) for name in amounts]
        seen.objects["resourceflavors"] = kinds

    return do


def borrowing(own: str, others: str) -> Change:
    """Return a change by which the ClusterQueue and another of its cohort have so many GPUs."""

    def do(seen: survey.ClusterSurvey) -> None:
        mine = of(seen, "clusterqueues", "training")
        mine["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2]["nominalQuota"] = own
        mine["spec"]["cohortName"] = "small"
        other = copy.deepcopy(mine)
        other["metadata"]["name"] = "other"
        other["spec"]["cohortName"] = "all"
        other["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2]["nominalQuota"] = others
        seen.objects["clusterqueues"].append(other)
        seen.objects["cohorts"] = [thing("Cohort", "small", api=KUEUE, spec={"parentName": "all"})]

    return do


# What is changed, and the run's values -> level, object, and words of what is seen and of the remedy
WAYS: dict[str, tuple[Change, dict, str, str, str, str]] = {
    "a pull secret of another type": (
        secret("Opaque"), values(global__image__pullSecrets=["regcred"]), ERROR, "secret/regcred", "its type is Opaque",
        "create secret docker-registry regcred"),
    "a ConfigMap without the key": (
        configmap(**{"ca.pem": "x"}), values(global__caBundle={"configMap": "company", "key": "all.pem"}), ERROR,
        "configmap/company", "pods need its key all.pem", "global.caBundle.key (it has ca.pem)"),
    "no store of secrets": (
        add("secrets"), VALUES | STORE, ERROR, "secretstore/vault", "does not exist", "kubectl get secretstore"),
    "a store that is not ready": (
        store("False"), VALUES | STORE, ERROR, "secretstore/vault", "it is not ready: permission denied",
        "kubectl describe secretstore/vault"),
    "no template of claims": (
        add("secrets"), NICS, ERROR, "resourceclaimtemplate/nics", "does not exist in namespace vision",
        "global.training.resourceClaims"),
    "no class of devices": (
        template("rdma"), NICS, ERROR, "resourceclaimtemplate/nics", "of the class rdma, which does not exist",
        "kubectl get deviceclass"),
    "no ingress controller": (
        add("secrets"), FILES, WARNING, "ingress/doctor-filebrowser", "has no default one",
        "none: install an ingress controller"),
    "Services that the operator may not make": (
        quota("services", "1"), VALUES, ERROR, "resourcequota/team", "it allows 1 services, and the run asks 2",
        "remove what is no longer used"),
    "a Secret that Helm may not make": (
        quota("count/secrets", "3", "3"), VALUES, ERROR, "resourcequota/team",
        "it allows 3 count/secrets, of which 3 are used", "raised to count/secrets: 4"),
    "flavors that are too small each": (
        flavors(one="12", other="12"), values(global__training__nodes=1, global__training__gpusPerNode=16), ERROR,
        "clusterqueue/training", "no flavor alone has 16 nvidia.com/gpu for the pytorchjob master; the largest has 12",
        "give one flavor that quota"),
    "a flavor whose taint the run does not tolerate": (
        change("resourceflavors", "gpu", "spec nodeTaints", [{"key": "spot", "value": "true", "effect": "NoSchedule"}]),
        VALUES, ERROR, "clusterqueue/training", "is for the pytorchjob master (gpu: it has the taint spot)",
        "tolerate that taint"),
    "a flavor of other nodes": (
        add("secrets"), values(global__scheduling__nodeSelector={"pool": "cpu"}), ERROR, "clusterqueue/training",
        "gpu: its nodes have pool=gpu", "correct nodeSelector"),
    "queues that have too little together": (
        borrowing("8", "4"), VALUES, ERROR, "cohort/all", "12 nvidia.com/gpu in all, and the PyTorchJob requests 16",
        "raise nominalQuota"),
    "a policy without the source": (
        policy("Egress", egress=[{"to": [{"namespaceSelector": {}}]}]), VALUES, ERROR, "networkpolicy/deny",
        "may not reach the source of the data", "networkPolicy.enabled: true"),
    "a policy that opens another port": (
        policy("Egress", egress=[{"to": [{"namespaceSelector": {}}]}, {"ports": [{"port": 80, "endPort": 90}]}]),
        VALUES, ERROR, "networkpolicy/deny", "may not reach the source of the data", "on its port"),
    "a mesh without sidecars": (
        change("namespace", NAMESPACE, "metadata labels istio.io/dataplane-mode", "ambient"), VALUES, WARNING,
        "namespace/vision", "through ztunnel", "global.training.podLabels: {istio.io/dataplane-mode: none}"),
}  # fmt: skip
SOUND: dict[str, tuple[Change, dict]] = {
    "a pull secret": (
        secret("kubernetes.io/dockerconfigjson"), values(global__image__pullSecrets=["regcred"])),
    "a ConfigMap with the key": (
        configmap(**{"all.pem": "x"}), values(global__caBundle={"configMap": "company", "key": "all.pem"})),
    "a store that is ready": (store("True"), VALUES | STORE),
    "a template of a class": (
        both(template("rdma"), add(references.CLASSES, thing("DeviceClass", "rdma"))), NICS),
    "a default class of ingresses": (
        add(references.INGRESSES, thing("IngressClass", "x", metadata={"annotations": {references.DEFAULT: "true"}})),
        FILES),
    "Services enough": (quota("services", "2"), VALUES),
    "one flavor that is large enough": (flavors(small="2", large="32"), VALUES),
    "queues that lend enough": (borrowing("8", "8"), VALUES),
    "a policy that opens blocks": (
        policy("Egress", egress=[{"to": [{"namespaceSelector": {}}]}, {"to": [{"ipBlock": {"cidr": "93.0.0.0/8"}}]}]),
        VALUES),
    "a policy that opens a range of ports": (
        policy("Egress", egress=[{"to": [{"namespaceSelector": {}}]}, {"ports": [{"port": 400, "endPort": 500}]}]),
        VALUES),
    "a source within the cluster": (
        policy("Egress", egress=[{"to": [{"namespaceSelector": {}}]}]),
        values(dataset__source={"url": "http://archive/pictures.zip"})),
    "a proxy": (
        policy("Egress", egress=[{"to": [{"namespaceSelector": {}}]}]),
        values(dataset__env=[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}])),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_named_with_a_remedy(way):
    do, asked, *expected = WAYS[way]
    check_named(do, *expected, asked=asked)


@pytest.mark.parametrize("way", SOUND)
def test_what_is_there_is_no_finding(way):
    do, asked = SOUND[way]
    seen = sound()
    do(seen)
    assert found(seen, asked) == []


def test_what_must_be_read_is_what_the_run_names():
    assert references.list_kinds(clusters.asking(VALUES)) == []
    assert references.list_kinds(clusters.asking(VALUES | STORE)) == [*references.STORES.values()]
    assert references.list_kinds(clusters.asking(NICS)) == [*references.CLAIMS.values(), references.CLASSES]
    assert references.list_kinds(clusters.asking(FILES)) == [references.INGRESSES]


def test_of_a_secret_the_type_is_read_from_its_table():
    columns = [{"name": "Name"}, {"name": "Type"}, {"name": "Data"}]
    table = {"kind": "Table", "columnDefinitions": columns, "rows": [
        {"cells": ["regcred", "Opaque", 1], "object": {"metadata": {"name": "regcred"}}}]}  # fmt: skip
    assert survey.parse_row(table) == {"metadata": {"name": "regcred"}, "name": "regcred", "type": "Opaque", "data": 1}
