"""Probe claims and volumes that somebody has prepared: none is taken, and what is taken all the same is not touched.

The binder is the fake server's, which plays Kubernetes' rule; tests/e2e/test_doctor.py has the real one.
"""

import copy
import json
from datetime import UTC, datetime

import pytest

from tests.unit.cluster.clusters import NAMESPACE, stamp
from trainyard.cluster import kube, survey
from trainyard.cluster.checks import prepared_volumes, probe_objects, probe_removal, probes
from trainyard.cluster.demand import Demand

RWX, RWO = "ReadWriteMany", "ReadWriteOnce"
MADE = {"pv.kubernetes.io/provisioned-by": "nfs.csi.k8s.io"}


def prepared(name: str = "imagenet", size: str = "1200Gi", notes: dict | None = None, **spec: object) -> dict:
    """Return a free volume of the class nfs, by default one that a provisioner removes with its files."""
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", "creationTimestamp": stamp(86_400)}
    meta["annotations"] = MADE if notes is None else notes
    told = {"storageClassName": "nfs", "accessModes": [RWX], "capacity": {"storage": size},
            "persistentVolumeReclaimPolicy": "Retain", **spec}  # fmt: skip
    return {"metadata": meta, "spec": told, "status": {"phase": "Available"}}


def set_class(cluster, **fields: str) -> None:
    """Change the one class of the cluster."""
    cluster.objects["storageclasses"][0].update(fields)


def claims(cluster) -> list[tuple[str, str]]:
    """Return the claims that were created."""
    return [one for one in cluster.created if one[0] == "persistentvolumeclaims"]


def is_probe(thing: dict) -> bool:
    """Whether an object is doctor's own, and not one of the run that it tries."""
    return probe_objects.MARK.items() <= thing["metadata"].get("labels", {}).items()


@pytest.mark.parametrize("binding", ["Immediate", "WaitForFirstConsumer"])
@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_no_claim_is_made_where_a_volume_is_free(cluster, run, policy, binding):
    cluster.objects["persistentvolumes"] = [prepared()]
    before = copy.deepcopy(cluster.objects["persistentvolumes"])
    set_class(cluster, reclaimPolicy=policy, volumeBindingMode=binding)
    code, said = run()
    assert code == 0, said
    assert "unproven storage      whether nfs binds ReadWriteMany: Kubernetes would give a claim a volume" in said
    assert "imagenet (1200Gi)" in said
    assert "name that volume in values" in said
    assert (claims(cluster), cluster.patched, cluster.destroyed) == ([], [], [])
    assert cluster.objects["persistentvolumes"] == before


# What is unlike the first volume -> whether the claim is tried all the same
UNLIKE = {
    "just large enough": (prepared(size="1Gi"), False),
    "too small": (prepared(size="1023Mi"), True),
    "of a size that is none": (prepared(size="much"), False),
    "of another class": (prepared(storageClassName="ceph"), True),
    "of the class by its annotation": (
        prepared(storageClassName="ceph", notes={prepared_volumes.CLASS: "nfs"}), False),
    "of another class by its annotation": (prepared(notes={prepared_volumes.CLASS: "ceph"}), True),
    "of more modes": (prepared(accessModes=[RWO, RWX]), False),
    "of another mode": (prepared(accessModes=[RWO]), True),
    "a block device": (prepared(volumeMode="Block"), True),
    "kept for a claim that is not there yet": (prepared(claimRef={"namespace": "team", "name": "data"}), False),
    "another claim's": (prepared(claimRef={"namespace": "team", "name": "data", "uid": "u"}), True),
    "not yet Available": (prepared() | {"status": {"phase": "Pending"}}, False),
    "without a status": ({key: prepared()[key] for key in ("metadata", "spec")}, False),
    "of one node": (prepared(nodeAffinity={"required": {}}), False),
}  # fmt: skip


@pytest.mark.parametrize("way", UNLIKE)
def test_what_a_claim_cannot_get_hinders_no_probe(cluster, run, way):
    volume, tried = UNLIKE[way]
    volume = copy.deepcopy(volume)
    cluster.objects["persistentvolumes"] = [volume]
    before = copy.deepcopy(volume)
    code, said = run()
    assert code == 0, said
    assert (len(claims(cluster)) == 1) == tried, said
    assert cluster.objects["persistentvolumes"] == [before]


def test_no_claim_is_made_where_volumes_may_not_be_listed(cluster, run):
    cluster.forbidden = {"persistentvolumes"}
    code, said = run()
    assert code == 0, said
    assert claims(cluster) == []
    assert "this user may not list persistentvolumes: ask for a role that may (trainyard-doctor of" in said


def test_other_classes_are_tried_by_the_same_rule(cluster, run):
    """The run's class binds nothing; of two others one has a free volume."""
    for name in ("ceph", "efs"):
        other = json.loads(json.dumps(cluster.objects["storageclasses"][0]))
        other["metadata"] |= {"name": name, "annotations": {}}
        cluster.objects["storageclasses"].append(other)
    cluster.binds = {("ceph", RWX), ("efs", RWX)}
    cluster.objects["persistentvolumes"] = [prepared(storageClassName="efs")]
    said = run("--seconds", "2")[1]
    assert "storageClass: ceph, which binds ReadWriteMany" in said
    assert "whether efs binds ReadWriteMany: Kubernetes would give a claim a volume that somebody has prepared" in said
    assert "claimRef" not in cluster.objects["persistentvolumes"][0]["spec"]


def test_the_default_class_is_named_in_its_claim(cluster):
    """Another class may become the default one between the look and the creation, and none: then any volume fits."""
    asked: list[dict] = []
    cluster.admit = asked.append
    context = probes.Context(survey.read(NAMESPACE), Demand("a run", True, {}, [], True), "")
    with probe_removal.removing(NAMESPACE, datetime.now(UTC)) as made:
        probes.bind(made, [("", RWX)], context, 2)
    assert asked[0]["spec"]["storageClassName"] == "nfs"
    assert asked[1]["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] is True, "no owner of a file changes"


@pytest.mark.parametrize("notes", [MADE, {}], ids=["of a provisioner", "by hand"])
@pytest.mark.parametrize("born", ["2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"], ids=["older", "newer"])
@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_volume_that_is_freed_meanwhile_is_left_alone(cluster, run, policy, born, notes):
    """It becomes free between the look and the creation; a newer one while the claim waits for its provisioner."""
    volume = prepared(notes=dict(notes), persistentVolumeReclaimPolicy=policy)
    volume["metadata"]["creationTimestamp"] = born
    set_class(cluster, reclaimPolicy=policy)

    def free(thing: dict) -> None:
        if thing["kind"] == "Pod" and thing["spec"]["volumes"] and is_probe(thing):
            cluster.objects["persistentvolumes"] = [volume]

    cluster.admit = free
    code, said = run()
    ((_, claim),) = claims(cluster)
    assert (code, cluster.patched, cluster.destroyed) == (1, [], []), said
    assert ("persistentvolumeclaims", claim) not in cluster.deleted
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == policy
    assert volume["spec"]["claimRef"]["name"] == claim
    steps = ("""kubectl patch pv imagenet -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'; """
             f"kubectl delete pvc {claim} -n {NAMESPACE}; "
             """kubectl patch pv imagenet --type=merge -p '{"spec":{"claimRef":null}}'""")  # fmt: skip
    assert said.count(f"{steps}") == 2, f"on stderr and as a finding\n{said}"
    assert said.count('"persistentVolumeReclaimPolicy":"Delete"') == (2 if policy == "Delete" else 0)
    assert f"error    storage      persistentvolumeclaim/{claim}: doctor's probe claim has taken a volume" in said
    assert "whether nfs binds ReadWriteMany: doctor's probe claim has taken a volume" in said
    assert {plural for plural, _ in cluster.deleted} == {"pods"}


def test_a_claim_that_waits_for_a_pod_gets_none_where_a_volume_is_free_by_then(cluster, run):
    """Without a pod Kubernetes looks for no volume."""
    volume = prepared()
    before = copy.deepcopy(volume)

    def free(thing: dict) -> None:
        if thing["kind"] == "PersistentVolumeClaim" and is_probe(thing):
            cluster.objects["persistentvolumes"] = [volume]

    cluster.admit = free
    code, said = run()
    ((_, claim),) = claims(cluster)
    assert code == 1
    assert volume == before
    assert f"persistentvolumeclaim/{claim}: doctor's probe claim may take a volume that was not made for it" in said
    assert ("persistentvolumeclaims", claim) not in cluster.deleted


def bound(name: str, **meta: object) -> dict:
    """Return an old probe claim."""
    own = {"name": name, "uid": f"uid-{name}", "namespace": NAMESPACE, "resourceVersion": "3",
           "labels": probe_objects.MARK, "creationTimestamp": "2020-01-01T00:00:00Z", **meta}  # fmt: skip
    return {"kind": "PersistentVolumeClaim", "metadata": own, "spec": {"storageClassName": "nfs", "accessModes": [RWX]},
            "status": {"phase": "Pending"}}  # fmt: skip


def held_by(claim: dict, name: str, born: str) -> dict:
    """Return a volume that a claim holds, born at a time."""
    volume = prepared(name, claimRef={"uid": claim["metadata"]["uid"]}, persistentVolumeReclaimPolicy="Delete")
    volume["metadata"]["creationTimestamp"] = born
    claim["spec"]["volumeName"] = name
    return volume


def swept(cluster, *held: dict) -> list[str]:
    """Return what is kept of some old claims."""
    cluster.objects["persistentvolumeclaims"] = list(held)
    return [one.claim for one in probe_removal.sweep(NAMESPACE, datetime.now(UTC))]


def test_a_claim_that_a_killed_one_left_goes_only_with_a_volume_that_was_made_for_it(cluster):
    own, taken, stranger = bound("doctor-own"), bound("doctor-taken"), bound("doctor-theirs", labels={"team": "x"})
    cluster.objects["persistentvolumes"] = [
        held_by(own, "pvc-1", "2020-01-01T00:00:00Z"), held_by(taken, "imagenet", "2019-12-31T23:59:59Z")]  # fmt: skip
    assert swept(cluster, own, taken, stranger) == ["doctor-taken"]
    assert (cluster.deleted, cluster.uids) == ([("persistentvolumeclaims", "doctor-own")], ["uid-doctor-own"])
    assert (cluster.destroyed, cluster.patched) == (["pvc-1"], [])


def test_a_claim_stays_where_its_volume_cannot_be_read(cluster):
    own = bound("doctor-own")
    cluster.objects["persistentvolumes"] = [held_by(own, "pvc-1", "2020-01-01T00:00:00Z")]
    cluster.forbidden = {"persistentvolumes"}
    (kept,) = [one for one in [probe_removal.dispose("persistentvolumeclaims", NAMESPACE, own, retained=True)] if one]
    assert "may hold a volume that somebody has prepared, and was kept: this user may not list" in kept.why
    assert "tells its VOLUME" in kept.remedy()
    assert (cluster.deleted, cluster.patched) == ([], [])


def test_a_claim_that_is_not_bound_stays_while_a_volume_is_free_for_it(cluster):
    """Kubernetes may be about to bind it: its own note is written last."""
    cluster.objects["persistentvolumes"] = [prepared()]
    assert swept(cluster, bound("doctor-own")) == ["doctor-own"]
    cluster.objects["persistentvolumes"] = [
        prepared(claimRef={"uid": "uid-doctor-own"}, notes={prepared_volumes.TAKEN: "yes"})
    ]
    assert swept(cluster, bound("doctor-own")) == ["doctor-own"]
    cluster.objects["persistentvolumes"] = []
    assert swept(cluster, bound("doctor-own")) == []


def test_a_claim_that_has_changed_since_its_volumes_were_looked_at_stays(cluster):
    seen = bound("doctor-own")
    now = copy.deepcopy(seen)
    now["metadata"]["resourceVersion"] = "4"  # it is bound by now
    cluster.objects["persistentvolumeclaims"] = [now]
    with pytest.raises(kube.RefusedError, match="was left alone"):
        probe_removal.dispose("persistentvolumeclaims", NAMESPACE, seen)
    assert cluster.deleted == []


def test_a_volume_that_has_changed_since_it_was_looked_at_is_not_patched(cluster, monkeypatch):
    claim = bound("doctor-own")
    volume = held_by(claim, "pvc-1", "2020-01-01T00:00:00Z")
    cluster.objects["persistentvolumes"] = [volume]
    old = [copy.deepcopy(volume)]
    volume["metadata"]["resourceVersion"] = "8"
    monkeypatch.setattr(prepared_volumes, "read_all", lambda: old)
    with pytest.raises(kube.RefusedError, match="resourceVersion"):
        probe_removal.release(claim)
    assert cluster.patched == []


def test_volumes_of_kubernetes_own_provisioners_are_made_for_a_claim():
    claim = bound("doctor-own")
    volume = held_by(claim, "pvc-uid-doctor-own", "2020-01-01T00:00:00Z")
    volume["metadata"]["annotations"] = {prepared_volumes.TAKEN: "yes"}
    assert prepared_volumes.is_made_for(volume, claim)
    volume["metadata"]["name"] = "imagenet"
    assert not prepared_volumes.is_made_for(volume, claim)


def test_a_volume_that_another_claim_has_is_not_made_for_the_one_that_names_it():
    claim = bound("doctor-own")
    volume = held_by(claim, "pvc-1", "2020-01-01T00:00:00Z")
    volume["spec"]["claimRef"] = {"uid": "another's"}
    assert prepared_volumes.judge(claim, [volume])
    assert prepared_volumes.judge(claim, []) is None, "its volume has gone before it"


def test_what_has_a_probes_name_and_is_another_stays(cluster):
    """A claim of that name and label is there already, or was recreated meanwhile."""
    with probe_removal.removing(NAMESPACE, datetime.now(UTC)) as made:
        made.create("pods", {"kind": "Pod", "metadata": {"name": "doctor-1", "labels": probe_objects.MARK}, "spec": {}})
        (pod,) = cluster.objects["pods"]
        pod["metadata"]["uid"] = "another"
        cluster.admit = lambda thing: (409, "already exists")
        with pytest.raises(kube.RefusedError):
            made.create("pods", {"kind": "Pod", "metadata": {"name": "doctor-2", "labels": probe_objects.MARK}})
        new = copy.deepcopy(pod)
        new["metadata"] |= {"name": "doctor-2", "uid": "third"}
        cluster.objects["pods"].append(new)
    assert cluster.deleted == []
