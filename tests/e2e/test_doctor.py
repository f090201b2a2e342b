"""doctor on the real cluster: no finding on the sound one; made wrong, each way is named with a remedy."""

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from tests import documents
from tests.e2e import cluster, misconfigured, owners
from tests.e2e.cluster import get, kubectl, until
from tests.e2e.misconfigured import apply
from tests.e2e.owners import LABELS
from trainyard.cluster import doctor, kube
from trainyard.cluster.checks import prepared_volumes

pytestmark = [pytest.mark.e2e, pytest.mark.takes(60)]
POLICIES = "admissionregistration.k8s.io/v1"
LONG = ("--seconds", "600")  # for probes that end with what they find: a busy machine starts their pods late


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """A namespace that enforces `restricted`."""
    name = f"doctor-{secrets.token_hex(3)}"
    create_namespace(name)
    until("its service account is there", lambda: get("serviceaccounts", name))
    yield name
    owners.delete("namespaces", name)


def create_namespace(name: str) -> None:
    labels = LABELS | {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.create("namespaces", "", {"metadata": {"name": name, "labels": labels}})


@pytest.fixture(scope="module")
def values(image) -> dict:
    """Values of a small run that the cluster can take."""
    # small requests: doctor would report it where other tests' pods leave no room for larger ones
    little = {"requests": {"cpu": "1m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
    training = {"operator": "pytorchjob", "nodes": 2, "gpusPerNode": 0, "processesPerNode": 1, "recipe": "demo",
                "shmSize": "64Mi", "resources": little}  # fmt: skip
    storage = {"data": {"size": "1Gi"}, "results": {"size": "1Gi"}}
    return {
        "global": {"image": dict(image), "storage": storage, "training": training},
        "dataset": {"source": {"url": "http://archive/fashion.zip"}, "resources": little},
    }


@pytest.fixture
def examine(namespace, values, tmp_path, capsys):
    """Return a function: doctor's findings for the run, with some values changed, as (level, object, seen, remedy)."""

    def do(*arguments: str, home: str = "", **over: object) -> list[dict]:
        changed = json.loads(json.dumps(values))
        for path, value in over.items():
            *parents, last = path.split("__")
            inner = changed
            for key in parents:
                inner = inner.setdefault(key, {})
            inner[last] = value
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(changed))
        code = doctor.main(["-n", home or namespace, "-f", str(file), "--json", *arguments])
        found = json.loads(capsys.readouterr().out)["findings"]
        assert code == int(any(one["level"] == "error" for one in found))
        assert all(one["remedy"] for one in found)
        return found

    return do


def names(found: list[dict], name: str, seen: str, remedy: str, level: str = "error") -> None:
    """Check that one finding is of this object, says this and has this remedy."""
    fits = [one for one in found if one["level"] == level and one["object"].startswith(name)]
    assert any(seen in one["seen"] and remedy in one["remedy"] for one in fits), json.dumps(found, indent=1)


def test_a_sound_cluster_has_no_finding_and_no_probe_stays(namespace, values, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(values))
    command = documents.text("doctor.md", "trainyard doctor -n vision -f").split()
    own = {"vision": namespace, "run.yaml": str(file)}
    done = cluster.run(*(own.get(word, word) for word in command), "--json", *LONG, check=False)
    told = json.loads(done.stdout)
    assert (done.returncode, told["findings"]) == (0, []), done.stdout + done.stderr
    assert [one for one in told["checks"] if one["unproven"]] == []
    assert "binds ReadWriteMany" in {one["check"]: one["sound"] for one in told["checks"]}["storage"]
    until("all probes are gone", lambda: nothing_left(namespace))


def test_without_values_the_sound_cluster_has_no_finding_either(namespace, capsys):
    assert doctor.main(["-n", namespace, "--no-probe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_the_values_file_fits(namespace, image, tmp_path, capsys):
    fits = tmp_path / "fits.yaml"
    named = f"{image['registry']}/trainyard-pytorch:{image['tag']}"
    assert doctor.main(["-n", namespace, "--image", named, "--values", str(fits), *LONG]) == 0, capsys.readouterr().out
    done = cluster.helm("template", "run", "charts/trainyard", "-n", namespace, "-f", fits)
    kubectl("apply", "--dry-run=server", "-n", namespace, "-f", "-", stdin=done.stdout)


# Values that the cluster cannot take, together -> object, what is seen, remedy, of each
MISSING = {
    "global__scheduling": {"priorityClassName": "nowhere", "nodeSelector": {"doctor": "none"}},
    "global__training__runtimeClassName": "nowhere",
    "global__training__rdma": {"resource": "rdma/ib"},
    "global__serviceAccountName": "nowhere",
    "global__secrets": {"wandb": {"existingSecret": "nowhere"}},
    "global__storage": {"data": {"existingClaim": "nowhere"}, "results": {"storageClass": "nowhere"}},
    "global__metrics": {"enabled": True, "kind": "podMonitor"},
}
TOLD = [
    ("pytorchjob", "node affinity/selector", "global.scheduling.nodeSelector"),
    ("priorityclass/nowhere", "does not exist", "global.scheduling.priorityClassName"),
    ("runtimeclass/nowhere", "does not exist", "runtimeClassName"),
    ("namespace/", "need privileged", "kubectl label namespace"),
    ("serviceaccount/nowhere", "does not exist", "create serviceaccount"),
    ("secret/nowhere", "does not exist", "global.secrets"),
    ("persistentvolumeclaim/nowhere", "does not exist", "existingClaim"),
    ("claim/doctor-results", "nowhere does not exist", "global.storage.results.storageClass to one of"),
    ("podmonitor/doctor-training", "does not know the kind PodMonitor", "take out of values"),
]


def test_what_the_run_asks_in_vain_is_named(examine):
    found = examine("--no-probe", **MISSING)
    for told in TOLD:
        names(found, *told)


def test_amounts_that_no_node_has_are_named(examine):
    found = examine("--no-probe", global__training={"nodes": 1, "gpusPerNode": 8})
    names(found, "pytorchjob", "Insufficient nvidia.com/gpu: 0 of 8", "nvidia.com/gpu")
    found = examine("--no-probe", global__training__resources={"requests": {"memory": "9000Gi"}})
    names(found, "pytorchjob", "Insufficient memory", "lower memory under global.training.resources")


def test_values_that_the_chart_refuses_are_named(examine):
    found = examine("--no-probe", global__training__nodes=0)
    names(found, "values", "Please set: global.training.nodes", "correct the key")


def quota(**hard: str) -> dict:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": hard}}


def limits(**bounds: dict) -> dict:
    spec = {"limits": [{"type": "Container", **bounds}]}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "team"}, "spec": spec}


def denied(*types: str) -> dict:
    meta = {"name": "deny"}
    spec = {"podSelector": {}, "policyTypes": list(types)}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


STALE = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "mpi-operator"},
    "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": {
        "metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "x",
        "image": "mpioperator/mpi-operator:0.6.0"}]}}},
}  # fmt: skip
CLAIM = misconfigured.claim("held", storageClassName="", volumeName="nowhere", accessModes=["ReadWriteOnce"])

# What is made in the namespace, together -> object, what is seen, remedy, of each
MADE = [
    (quota(pods="2", **{"requests.storage": "1Gi", "limits.cpu": "99"}),
     ("resourcequota/team", "allows 2 pods, and the run asks 4", "raised to pods: 4"),
     ("resourcequota/team", "the run asks 1Gi", "lower size under global.storage"),
     ("resourcequota/team", "counts limits.cpu", "set limits.cpu under global.training.resources")),
    (limits(max={"memory": "300Mi"}, default={"memory": "300Mi"}),
     ("limitrange/team", "300Mi memory at most", "global.training.resources")),
    (denied("Egress"), ("networkpolicy/deny", "may not reach the name server", "networkPolicy.enabled: true")),
    (STALE, ("deployment/mpi-operator", "scaled to 0", "--replicas=1")),
    (CLAIM, ("persistentvolumeclaim/held", "it is not bound", "kubectl describe persistentvolumeclaim/held")),
]  # fmt: skip


def test_a_namespace_made_wrong_is_named(examine, namespace):
    apply(namespace, CLAIM)  # before the quota that has no room for it
    apply(namespace, *(thing for thing, *_ in MADE))
    try:
        until("the quota is counted", lambda: get("resourcequotas", namespace)[0].get("status", {}).get("used"))
        found = examine(
            "--no-probe", global__storage__data={"existingClaim": "held"}, global__training__operator="mpijob"
        )
    finally:
        for thing, *_ in MADE:
            kubectl("delete", thing["kind"], thing["metadata"]["name"], "-n", namespace, "--ignore-not-found")
    for _, *told in MADE:
        for one in told:
            names(found, *one)


def test_a_namespace_that_is_missing_or_going_is_named(examine):
    name = f"doctor-{secrets.token_hex(3)}"
    names(
        examine("--no-probe", home=name),
        f"namespace/{name}",
        "does not exist yet",
        "kubectl create namespace",
        "warning",
    )
    create_namespace(name)
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["example.com/held"]}}
    apply(name, held)
    kubectl("delete", "namespace", name, "--wait=false")
    try:
        names(examine("--no-probe", home=name), f"namespace/{name}", "being deleted", "wait until it is gone")
    finally:
        kubectl("patch", "configmap", "held", "-n", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


@contextlib.contextmanager
def wide(*things: dict) -> Iterator[None]:
    """Create objects of the whole cluster, and delete them afterwards."""
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(things)}))
    try:
        yield
    finally:
        for one in reversed(things):
            owners.delete(one["kind"].lower(), one["metadata"]["name"], one["metadata"].get("namespace"))


def whole(kind: str, name: str, api: str, **parts: object) -> dict:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": LABELS}, **parts}


def test_a_policy_that_refuses_is_named_once(examine, namespace):
    name = namespace
    what = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    rule = {"expression": "'team' in object.metadata.labels", "message": "pods need the label team"}
    spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [what]}, "validations": [rule]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    bound = {"policyName": name, "validationActions": ["Deny"], "matchResources": here}
    with wide(
        whole("ValidatingAdmissionPolicy", name, POLICIES, spec=spec),
        whole("ValidatingAdmissionPolicyBinding", name, POLICIES, spec=bound),
    ):
        until("it is in force", lambda: examine("--no-probe"))
        found = examine("--no-probe")  # before, it may have come into force between two pods
        (one,) = found
        assert "pods of the pytorchjob master" in one["object"]
        names(found, "pods of the", "pods need the label team", "a rule of the cluster refuses it")
        assert examine("--no-probe", global__labels={"team": "red"}) == []


def test_a_webhook_that_nobody_answers_is_named(examine, namespace):
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    hook = {
        "name": "v1.doctor.example.com", "rules": [rule], "failurePolicy": "Fail", "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "clientConfig": {"service": {"name": "gone", "namespace": namespace}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }  # fmt: skip
    with wide(whole("ValidatingWebhookConfiguration", namespace, POLICIES, webhooks=[hook])):
        found = examine("--no-probe")
        names(found, f"validatingwebhookconfiguration/{namespace}", "gone does not exist", "kubectl delete")


# Provisioner of a class, seconds for a probe, remedy. A provisioner that does not exist never refuses: doctor waits to
# the end. A name of Kubernetes' own is refused at once: the seconds are then for the other class, which may be slow.
PROVISIONERS = {
    "a provisioner that does not exist": ("doctor.example.com/none", 4, "global.storage.data.storageClass"),
    "a provisioner that is refused": ("kubernetes.io/none", 600, "which binds ReadWriteMany"),
}


@pytest.mark.parametrize("way", PROVISIONERS)
def test_a_class_that_binds_nothing_is_named(examine, namespace, way):
    provisioner, seconds, remedy = PROVISIONERS[way]
    own = {"data": {"size": "1Gi", "storageClass": namespace}, "results": {"size": "1Gi"}}
    with wide(whole("StorageClass", namespace, "storage.k8s.io/v1", provisioner=provisioner)):
        found = examine("--seconds", str(seconds), global__storage=own)
    names(found, "claim/doctor-data", "has not bound a ReadWriteMany claim", remedy)
    until("all probes are gone", lambda: nothing_left(namespace))


def test_a_class_whose_volumes_are_for_one_node_is_named(examine, namespace):
    spec = {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": namespace,
            "hostPath": {"path": "/nowhere"}}  # fmt: skip
    own = {"data": {"size": "1Gi", "storageClass": namespace}, "results": {"size": "1Gi"}}
    with wide(
        whole("StorageClass", namespace, "storage.k8s.io/v1", provisioner="kubernetes.io/no-provisioner"),
        whole("PersistentVolume", namespace, "v1", spec=spec),
    ):
        found = examine("--no-probe", global__storage=own)
    names(found, "claim/doctor-data", "no volume is free", "PersistentVolume")


def nothing_left(namespace: str) -> bool:
    """Whether no claim and no pod is left in the namespace; doctor waits for that for 30 s only."""
    return get("persistentvolumeclaims", namespace) + get("pods", namespace) == []


def test_an_image_that_cannot_be_pulled_is_named(examine, namespace):
    found = examine(*LONG, global__image={"registry": "localhost:1/team", "tag": "0.1.0"})
    names(found, "image localhost:1/team/trainyard-pytorch:0.1.0", "refused", "do not reach the registry")
    until("all probes are gone", lambda: nothing_left(namespace))


def stored(name: str, storage_class: str, policy: str, mark: bool) -> tuple[dict, Path]:
    """Describe a free volume of 100 GiB with a file on it, with the provisioner's mark or without; and its folder."""
    place = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard")) / "run" / "volumes" / name
    place.mkdir(mode=0o777)
    (place / "train-00000.tar").write_bytes(secrets.token_bytes(4096))
    spec = {"capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": storage_class,
            "persistentVolumeReclaimPolicy": policy, "hostPath": {"path": str(place), "type": "Directory"}}  # fmt: skip
    volume = whole("PersistentVolume", name, "v1", spec=spec)
    volume["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": PROVISIONER} if mark else {}
    return volume, place


@contextlib.contextmanager
def prepared(name: str, binding: str) -> Iterator[dict[str, Path]]:
    """Two classes of the cluster's provisioner with volumes that somebody has prepared; yields their folders."""
    classes = [whole("StorageClass", f"{name}-{policy.lower()}", "storage.k8s.io/v1", provisioner=PROVISIONER,
                     reclaimPolicy=policy, volumeBindingMode=binding) for policy in ("Retain", "Delete")]  # fmt: skip
    made = [stored(f"{name}-{number}", classes[which]["metadata"]["name"], policy, mark)
            for number, (which, policy, mark) in enumerate(PREPARED)]  # fmt: skip
    names = {volume["metadata"]["name"]: place for volume, place in made}
    try:
        with wide(*classes, *(volume for volume, _ in made)):
            until("they are free", lambda: {phase_of(one) for one in names} == {"Available"})
            yield names
    finally:
        for place in names.values():
            cluster.run("hack/cluster/in-node", "rm", "-rf", place)


def volume_of(name: str) -> dict:
    (found,) = get("persistentvolumes", None, fields=f"metadata.name={name}")
    return found


def phase_of(name: str) -> str:
    return str(volume_of(name).get("status", {}).get("phase", ""))


def state(names: dict[str, Path]) -> list[object]:
    """Return all that is known of volumes and the files on them."""
    files = [(path, path.read_bytes(), path.stat().st_uid, path.stat().st_mode, path.stat().st_mtime_ns)
             for place in names.values() for path in place.iterdir()]  # fmt: skip
    assert len(files) == len(names)
    return [*files, *map(volume_of, names)]


PROVISIONER = "rancher.io/local-path"
# The class, by number, policy, and the provisioner's mark: as of a volume whose claimRef was removed, and one by hand
PREPARED = ((0, "Retain", True), (0, "Retain", False), (1, "Delete", True), (1, "Retain", False))
ON_FILES = pytest.mark.skipif(not cluster.OWN, reason="it looks at files on the one-node cluster")


@ON_FILES
@pytest.mark.parametrize("binding", ["Immediate", "WaitForFirstConsumer"])
def test_volumes_that_somebody_has_prepared_and_their_files_are_untouched(namespace, values, tmp_path, capsys, binding):
    name, file = f"{namespace}-{binding.lower()[:4]}", tmp_path / "run.yaml"
    with prepared(name, binding) as names:
        own = {"data": {"storageClass": f"{name}-retain"}, "results": {"storageClass": f"{name}-delete"}}
        changed = json.loads(json.dumps(values))
        for which, more in own.items():
            changed["global"]["storage"][which] |= more
        file.write_text(yaml.safe_dump(changed))
        before = state(names)
        doctor.main(["-n", namespace, "-f", str(file), *LONG])
        said = capsys.readouterr().out
        for which, two in (("retain", (0, 1)), ("delete", (2, 3))):
            about = f"unproven storage      whether {name}-{which} binds ReadWriteMany: Kubernetes would give a claim"
            (line,) = [line for line in said.splitlines() if line.startswith(about)]
            assert all(f"{name}-{number} (100Gi)" in line for number in two), line
        until("all probes are gone", lambda: nothing_left(namespace))
        assert state(names) == before, "also their versions: nobody has bound or changed one"


@ON_FILES
@pytest.mark.parametrize("binding", ["Immediate", "WaitForFirstConsumer"])
def test_a_prepared_volume_that_a_probe_took_is_given_back_by_the_remedy(examine, namespace, monkeypatch, binding):
    """It is as if it had become free right after doctor's last look."""
    monkeypatch.setattr(prepared_volumes, "forbid", lambda *_: "")
    name = f"{namespace}-late-{binding.lower()[:4]}"
    with prepared(name, binding) as names:
        own = {which: {"size": "1Gi", "storageClass": f"{name}-{last}"}
               for which, last in (("data", "retain"), ("results", "delete"))}  # fmt: skip
        before = state(names)
        found = examine(*LONG, global__storage=own)
        taken = [one for one in found if one["object"].startswith("persistentvolumeclaim/doctor-")]
        held = [one for one in names if phase_of(one) == "Bound"]
        assert (len(taken), len(held)) == (2, 2), found
        policies = {one: volume_of(one)["spec"]["persistentVolumeReclaimPolicy"] for one in names}
        assert policies == {f"{name}-{n}": policy for n, (_, policy, _) in enumerate(PREPARED)}, "none was changed"
        for one in taken:
            assert any(volume in one["seen"] for volume in held)
            subprocess.run(["bash", "-euc", one["remedy"]], env=cluster.ENV, check=True)
        until("they are free again", lambda: {phase_of(one) for one in names} == {"Available"})
        files = len(names)
        assert state(names)[:files] == before[:files]
        now = {one: volume_of(one)["spec"] for one in names}
        assert now == {one["metadata"]["name"]: one["spec"] for one in before[files:]}
        until("all probes are gone", lambda: nothing_left(namespace))


@contextlib.contextmanager
def gpu_node(name: str, **status: object) -> Iterator[None]:
    """A node with eight GPUs that takes no pods, and whose kubelet there is not."""
    offers = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
    taints = [{"key": "doctor.example.com/gpu", "value": "yes", "effect": "NoSchedule"}]
    node = whole("Node", name, "v1", spec={"taints": taints})
    whole_status = {"capacity": offers, "allocatable": offers, "conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady",
        "lastHeartbeatTime": now()}]} | status  # fmt: skip
    with wide(node):
        kube.read(f"/api/v1/nodes/{name}/status", method="PATCH", body={"status": whole_status},
                  content="application/merge-patch+json")  # fmt: skip
        yield


def now(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


GPUS = {"global__training": {"nodes": 1, "gpusPerNode": 8, "shmSize": "1Gi"}}


@pytest.mark.alone
def test_gpu_nodes_made_wrong_are_named(examine, namespace):
    """A node that is no machine: other tests would see it in the scheduler's words."""
    name = f"{namespace}-gpu"
    full = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    with gpu_node(name):
        found = examine("--no-probe", **GPUS)
        names(found, "pytorchjob", "had untolerated taint doctor.example.com/gpu=yes:NoSchedule",
              "global.scheduling.tolerations: [{key: doctor.example.com/gpu")  # fmt: skip
        tolerant = {"tolerations": [{"key": "doctor.example.com/gpu", "operator": "Exists"}]}
        kubectl("cordon", name)
        found = examine("--no-probe", **GPUS, global__scheduling=tolerant)
        names(found, f"node/{name}", "cordoned", f"kubectl uncordon {name}", "warning")
        lease = whole("Lease", name, "coordination.k8s.io/v1", spec={"holderIdentity": name, "renewTime": now(120)})
        lease["metadata"]["namespace"] = "kube-node-lease"
        with wide(lease):
            names(examine("--no-probe"), f"node/{name}", "ahead of the API server's", "NTP", "warning")
    with gpu_node(name, allocatable=full | {"nvidia.com/gpu": "6"}, conditions=[
        {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no runtime"},
        {"type": "DiskPressure", "status": "True", "message": "full"}]):  # fmt: skip
        found = examine("--no-probe", **GPUS, global__scheduling=tolerant)
        names(found, f"node/{name}", "it is not ready", "kubectl describe", "warning")
        names(found, f"node/{name}", "2 of its 8 nvidia.com/gpu are unhealthy", "nvidia-smi", "warning")
        names(found, f"node/{name}", "DiskPressure", "free its disk", "warning")


@pytest.mark.alone
@pytest.mark.skipif(
    not cluster.OWN, reason="it takes the default StorageClass and an operator of the one-node cluster away"
)
def test_a_cluster_without_default_class_and_operator_is_named(examine, namespace):
    key = "storageclass.kubernetes.io/is-default-class"
    kubectl("annotate", "storageclass", "local-path", f"{key}=false", "--overwrite")
    kubectl("-n", "mpi-operator", "scale", "deployment/mpi-operator", "--replicas=0")
    kubectl("-n", "kube-system", "scale", "deployment/coredns", "--replicas=0")
    try:
        until("no name server is left", lambda: "scaled to 0" in str(examine("--no-probe")))
        found = examine("--no-probe", global__training__operator="mpijob")
        names(found, "claim/doctor-data", "no default one", "global.storage.data.storageClass to one of local-path")
        names(found, "deployment/mpi-operator", "scaled to 0", "scale deployment/mpi-operator --replicas=1")
        names(found, "service/kube-dns", "deployment coredns is scaled to 0", "scale deployment/coredns")
    finally:
        kubectl("annotate", "storageclass", "local-path", f"{key}=true", "--overwrite")
        kubectl("-n", "mpi-operator", "scale", "deployment/mpi-operator", "--replicas=1")
        kubectl("-n", "kube-system", "scale", "deployment/coredns", "--replicas=1")
        kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=24h")
        kubectl("-n", "mpi-operator", "rollout", "status", "deployment/mpi-operator", "--timeout=24h")


@pytest.mark.alone
@pytest.mark.skipif(not cluster.OWN, reason="it starts a second provisioner beside that of the one-node cluster")
def test_a_class_that_binds_for_one_node_only_is_named(examine):
    with misconfigured.one_node_class() as name:
        own = {which: {"size": "1Gi", "storageClass": name} for which in ("data", "results")}
        found = examine(*LONG, global__storage=own)
        names(found, "claim/doctor-data", "only supports ReadWriteOnce", "which binds ReadWriteMany")
