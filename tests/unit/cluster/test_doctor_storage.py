"""doctor on claims that values name, on volumes that are one node's, and on drivers without room."""

import copy

import pytest

from tests.unit.cluster.changes import Change, add, both, change, of, values
from tests.unit.cluster.clusters import BOUND, NAMESPACE, found, sound, thing
from trainyard.cluster import proposal, survey
from trainyard.cluster.checks import volumes
from trainyard.cluster.checks.diagnosis import ERROR, WARNING
from trainyard.cluster.checks.volumes import DISK, FOLDER, Probe

RWX, GI = "ReadWriteMany", 1 << 30
ASKED = values(global__storage__data={"existingClaim": "shared"})
ON_CPU_1 = {"required": {"nodeSelectorTerms": [{"matchExpressions": [
    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["cpu-1"]}]}]}}  # fmt: skip
IN_ZONE = {"required": {"nodeSelectorTerms": [{"matchExpressions": [
    {"key": "zone", "operator": "In", "values": ["a"]}]}]}}  # fmt: skip
STORAGE = "storage.k8s.io/v1"


def claim(**spec: object) -> Change:
    """Return a change that adds the bound claim `shared`, of the volume `disk`."""
    held = {"accessModes": [RWX], "volumeName": "disk", **spec}
    return add(
        "persistentvolumeclaims",
        thing("PersistentVolumeClaim", "shared", NAMESPACE, spec=held, status={"phase": "Bound"}),
    )


def volume(**spec: object) -> Change:
    return add("persistentvolumes", thing("PersistentVolume", "disk", spec=spec, status={"phase": "Bound"}))


def usage(**measured: int) -> Change:
    return add("volume-usage", {"claim": "shared", **measured})


def driver(*capacities: dict) -> Change:
    """Return a change by which the driver of the class nfs tells its room."""
    rooms = [thing("CSIStorageCapacity", f"c{i}", "nfs", STORAGE, storageClassName="nfs", **one)
             for i, one in enumerate(capacities)]  # fmt: skip
    return both(change("csidrivers", "nfs.csi.k8s.io", "spec", {"storageCapacity": True}),
                change("storageclasses", "nfs", "volumeBindingMode", "WaitForFirstConsumer"),
                add("csistoragecapacities", *rooms))  # fmt: skip


# What the named claim is -> level, words of what is seen and of the remedy
CLAIMS: dict[str, tuple[Change, str, str, str]] = {
    "a block device": (claim(volumeMode="Block"), ERROR, "volumeMode: Block", "volumeMode: Filesystem"),
    "read-only": (claim(accessModes=["ReadOnlyMany"]), ERROR, "the run writes to it", "dataset.enabled: false"),
    "for one pod": (claim(accessModes=["ReadWriteOncePod"]), ERROR, "ReadWriteOncePod", "nodes: 1"),
    "on a node without GPUs": (
        both(claim(), volume(nodeAffinity=ON_CPU_1)), ERROR, "on none of the nodes for the pytorchjob", "nodeSelector"),
    "in another zone": (both(claim(), volume(nodeAffinity=IN_ZONE)), ERROR, "disk can be mounted on none", "reach"),
    "a folder of each node": (
        both(claim(), volume(hostPath={"path": "/srv"})), WARNING, "a folder of a node: pods on several nodes",
        "unless every node mounts the same storage there"),
    "full": (
        both(claim(), usage(capacityBytes=100 * GI, availableBytes=2 * GI)), WARNING, "2Gi of its 100Gi are free",
        "enlarge it"),
    "out of inodes": (
        both(claim(), usage(capacityBytes=100 * GI, availableBytes=50 * GI, inodes=1000, inodesFree=0)), WARNING,
        "0 of its 1000 inodes", "more inodes"),
}  # fmt: skip
SOUND: dict[str, Change] = {
    "shared storage": both(claim(), volume(nfs={"server": "s", "path": "/"})),
    "half full": both(claim(), usage(capacityBytes=100 * GI, availableBytes=50 * GI, inodes=10, inodesFree=9)),
    "of a file system without inodes": both(claim(), usage(capacityBytes=100, availableBytes=50, inodes=0)),
}


@pytest.mark.parametrize("way", CLAIMS)
def test_a_claim_that_cannot_serve_is_named(way):
    do, level, words, remedy = CLAIMS[way]
    seen = sound()
    do(seen)
    (one,) = found(seen, ASKED)
    assert (one.level, one.object) == (level, "persistentvolumeclaim/shared")
    assert words in one.seen
    assert remedy in one.remedy


@pytest.mark.parametrize("way", SOUND)
def test_a_claim_that_serves_is_no_finding(way):
    seen = sound()
    SOUND[way](seen)
    assert found(seen, ASKED) == []


def test_a_folder_of_a_node_is_enough_for_a_run_on_one():
    seen = sound()
    both(claim(), volume(hostPath={"path": "/srv"}))(seen)
    assert found(seen, values(global__storage__data={"existingClaim": "shared"}, global__training__nodes=1)) == []


def test_a_read_only_claim_is_enough_for_prepared_data():
    seen = sound()
    claim(accessModes=["ReadOnlyMany"])(seen)
    data = {"existingClaim": "shared", "readOnly": True}
    assert found(seen, values(global__storage__data=data, dataset={"enabled": False})) == []


@pytest.mark.parametrize(("place", "level"), [(DISK, ERROR), (FOLDER, WARNING)])
def test_a_class_that_binds_a_volume_of_one_node_is_named(place, level):
    shown = BOUND._replace(claims=[Probe("nfs", RWX, True, 1.0, place=place)])
    data, results = found(sound(), shown=shown)
    assert (data.level, data.object, results.object) == (level, "claim/doctor-data", "claim/doctor-results")
    assert f"nfs binds ReadWriteMany, and its volume is {place}" in data.seen
    assert found(sound(), values(global__training__nodes=1), shown) == []


def test_a_proposal_prefers_a_class_whose_volumes_are_shared():
    here = [Probe("host", RWX, True, 1.0, place=FOLDER), Probe("nfs", RWX, True, 9.0)]
    lines = {one.path: one.value for one in proposal.claims(sound(), here, True)}
    assert lines["global.storage.data.storageClass"] == "nfs"


def test_where_files_are_is_read_from_the_volume():
    for spec, place in (({"local": {"path": "/x"}}, DISK), ({"nodeAffinity": ON_CPU_1}, DISK), ({"nfs": {}}, ""),
                        ({"nodeAffinity": IN_ZONE}, ""), ({"hostPath": {"path": "/x"}}, FOLDER)):  # fmt: skip
        assert volumes.find_place({"spec": spec}) == place


@pytest.mark.parametrize(("rooms", "words"), [
    ([{"capacity": "100Gi"}, {"capacity": "200Gi"}], "volumes of 200Gi at most, and the claim asks 300Gi"),
    ([{"capacity": "9Ti", "maximumVolumeSize": "10Gi"}], "volumes of 10Gi at most"),
    ([], "volumes of 0 at most"),
])  # fmt: skip
def test_a_driver_without_room_is_named(rooms, words):
    seen = sound()
    driver(*rooms)(seen)
    one = found(seen)[0]
    assert (one.level, one.object) == (ERROR, "claim/doctor-data")
    assert words in one.seen
    assert "set global.storage.data.size to less" in one.remedy


def test_a_driver_with_room_and_one_that_does_not_tell_are_no_finding():
    seen = sound()
    driver({"capacity": "9Ti"})(seen)
    assert found(seen) == []
    of(seen, "csidrivers", "nfs.csi.k8s.io")["spec"] = {}
    seen.objects["csistoragecapacities"] = []
    assert found(seen) == []


def test_how_full_a_claim_is_comes_from_the_summary_of_a_node():
    mine = {"pvcRef": {"name": "shared", "namespace": NAMESPACE}, "capacityBytes": 9}
    other = copy.deepcopy(mine) | {"pvcRef": {"name": "shared", "namespace": "team"}}
    told = survey.parse_usage({"pods": [{"volume": [{"name": "tmp"}, mine, other]}, {}]}, NAMESPACE)
    assert told == {"shared": mine | {"claim": "shared"}}
