"""doctor on certificates, etcd, webhooks, conversions and operators that run and should not be relied on."""

from datetime import timedelta

import pytest

from tests.unit.cluster.changes import Change, add, both, change, drop
from tests.unit.cluster.clusters import BOUND, NOW, bundle, deployment, found, sound, stamp, thing
from trainyard.cluster.certificates import Validity
from trainyard.cluster.checks import probes
from trainyard.cluster.checks.diagnosis import ERROR, NOTE, WARNING
from trainyard.cluster.checks.volumes import Probe

HOOKS, CRD = "validatingwebhookconfigurations", "customresourcedefinitions"
INIT = "--pytorch-init-container-template-file=x"
CONVERTED = {"strategy": "Webhook", "webhook": {"clientConfig": {
    "caBundle": bundle(30), "service": {"namespace": "kubeflow", "name": "training-operator"}}}}  # fmt: skip


def converted(name: str) -> Change:
    """Return a change by which a CRD's objects are stored in an older version too, and a webhook converts them."""
    stored = change(CRD, name, "status storedVersions", ["v1beta1"])
    return both(change(CRD, name, "spec conversion", CONVERTED), stored)


def restarted(times: int, ago: float, reason: str) -> Change:
    """Return a change by which the training-operator's pod has ended so often, lastly so many seconds ago."""
    over = {"reason": reason, "finishedAt": stamp(ago), "exitCode": 137}
    status = {"containerStatuses": [{"restartCount": times, "state": {}, "lastState": {"terminated": over}}]}
    labels = {"labels": {"app": "training-operator"}}
    return add("pods", thing("Pod", "to-1", "kubeflow", metadata=labels, spec={}, status=status))


WAYS: dict[str, tuple[Change, str, str, str, str]] = {
    "a webhook whose certificates have expired": (
        change(HOOKS, "pytorchjob", "webhooks 0 clientConfig caBundle", bundle(-2)), ERROR,
        "validatingwebhookconfiguration/pytorchjob", "its caBundle has expired on 2026-11-19", "cainjector"),
    "a webhook whose certificates are none": (
        change(HOOKS, "pytorchjob", "webhooks 0 clientConfig caBundle", "Cg=="), ERROR,
        "validatingwebhookconfiguration/pytorchjob", "its caBundle holds no certificate", "the operator itself"),
    "a conversion that nobody answers": (
        both(converted("pytorchjobs.kubeflow.org"), drop(HOOKS, "pytorchjob"),
             change("endpointslices", "training-operator-x", "endpoints", None)), ERROR, "crd/pytorchjobs.kubeflow.org",
        "no pod answers behind kubeflow/training-operator", "kubectl -n kubeflow get pods"),
    "a conversion of another kind": (
        both(converted("mpijobs.kubeflow.org"), drop(HOOKS, "pytorchjob"),
             drop("services", "training-operator")), WARNING, "crd/mpijobs.kubeflow.org", "does not exist", "get pods"),
    "two operators for the same jobs": (
        add("deployments", deployment("training-operator", "old", "kubeflow/training-operator:v1.9.4", INIT)), WARNING,
        "deployment/training-operator", "runs 2 times (kubeflow/training-operator, old/training-operator)",
        "kubectl -n old delete deployment/training-operator"),
    "an operator without enough memory": (
        restarted(9, 120, "OOMKilled"), WARNING, "deployment/training-operator",
        "has restarted 9 times, last 2 minutes ago (OOMKilled)", "raise its memory limit"),
    "an operator that crashes again and again": (
        restarted(9, 120, "Error"), WARNING, "deployment/training-operator", "9 times", "logs deployment/training"),
    "an old Kueue": (
        change("deployments", "kueue-controller-manager", "spec template spec containers 0 image", "x/kueue:v0.10.2"),
        NOTE, "deployment/kueue-controller-manager", "0.10.2, older than the 0.18.4", "update it"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_named_with_a_remedy(way):
    do, level, name, words, remedy = WAYS[way]
    seen = sound()
    do(seen)
    (one,) = found(seen)
    assert (one.level, one.object) == (level, name)
    assert words in one.seen
    assert remedy in one.remedy


@pytest.mark.parametrize("way", [
    restarted(2, 120, "Error"), restarted(40, 86400, "OOMKilled"),
    add("deployments", deployment("training-operator", "a", "x/training-operator:v1.9.4", INIT, "--namespace=a")),
    converted("pytorchjobs.kubeflow.org"),
    both(change(CRD, "pytorchjobs.kubeflow.org", "spec conversion", CONVERTED), drop(HOOKS, "pytorchjob"),
         change("endpointslices", "training-operator-x", "endpoints", None)),
    change(CRD, "pytorchjobs.kubeflow.org", "spec conversion", {"strategy": "None"}),
])  # fmt: skip
def test_what_is_as_it_should_be_is_no_finding(way):
    seen = sound()
    way(seen)
    assert [one for one in found(seen) if "looks at namespace" not in one.seen] == []


@pytest.mark.parametrize(("who", "lives", "left", "wrong"), [
    ("server", 365, 2, True), ("user", 365, 2, True), ("server", 365, 20, False), ("user", 365, -1, True),
    ("user", 0.5, 0.4, False), ("user", 0.5, 0.01, True),
])  # fmt: skip
def test_certificates_that_end_soon_are_named(who, lives, left, wrong):
    end = NOW + timedelta(days=left)
    valid = Validity(end - timedelta(days=lives), end)
    named = found(sound()._replace(certificates=((who, valid),)))
    assert [(one.level, one.object) for one in named] == [(WARNING, f"certificate/{who}")] * wrong


def test_an_etcd_without_room_is_named():
    full = "the probe was refused: etcdserver: mvcc: database space exceeded"
    (one,) = found(sound(), shown=BOUND._replace(claims=[Probe("nfs", "ReadWriteMany", False, 0.0, unproven=full)]))
    assert (one.level, one.object) == (ERROR, "etcd")
    assert "etcdserver: mvcc: database space exceeded" in one.seen
    assert "etcdctl alarm disarm" in one.remedy


def test_logs_that_cannot_be_read_are_named():
    said = "Get https://10.0.0.7:10250/containerLogs: remote error: tls: internal error"
    start: probes.Start = BOUND.starts[0]._replace(logs=said)
    (one,) = found(sound(), shown=BOUND._replace(starts=[start]))
    assert (one.level, one.object) == (WARNING, "pods/log")
    assert said in one.seen
    assert "kubectl get csr" in one.remedy
