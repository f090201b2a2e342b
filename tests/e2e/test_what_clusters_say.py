"""Further entries of docs/troubleshooting.md on the real cluster: its messages for values that it cannot fulfil."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e import cluster, misconfigured
from tests.e2e.cases import Case, Named, installer, table, watch
from tests.e2e.cluster import kubectl
from tests.e2e.owners import LABELS

pytestmark = [pytest.mark.e2e, pytest.mark.soak]
TRAINING, PLACING, DATA = "global.training", "global.scheduling", "global.storage.data"
HERE = {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "nowhere"}}}
]}  # fmt: skip
NEW = {f"{DATA}.existingClaim": ""}
CASES = {
    "service account": Case(
        'serviceaccount "nowhere" not found', "create that ServiceAccount", {"global.serviceAccountName": "nowhere"}
    ),
    "priority class": Case(
        "no PriorityClass with name nowhere", "name a PriorityClass", {f"{PLACING}.priorityClassName": "nowhere"}
    ),
    "runtime class": Case(
        'RuntimeClass "nowhere" not found', "create that RuntimeClass", {f"{TRAINING}.runtimeClassName": "nowhere"}
    ),
    "RDMA in restricted": Case("IPC_LOCK", "RDMA needs the capability", {f"{TRAINING}.rdma.resource": "rdma/ib"}),
    "hostPath in restricted": Case(
        "hostPath", "take out of values",
        {f"{TRAINING}.extraVolumes": [{"name": "host", "hostPath": {"path": "/"}}]},
    ),
    "GPUs": Case(
        "Insufficient nvidia.com/gpu", "lower global.training.gpusPerNode",
        {f"{TRAINING}.gpusPerNode": 1, f"{TRAINING}.processesPerNode": 0},
    ),
    "memory": Case(
        "Insufficient memory", "lower global.training.resources",
        {f"{TRAINING}.resources.requests": {"cpu": "10m", "memory": "9000Gi"}},
    ),
    "node selector": Case(
        "didn't match Pod's node affinity", "no node carries the labels", {f"{PLACING}.nodeSelector": {"no": "where"}}
    ),
    "pod affinity": Case(
        "didn't match pod affinity rules", "no node fits global.scheduling.affinity",
        {f"{PLACING}.affinity": {"podAffinity": HERE}},
    ),
    "spread": Case(
        "didn't match pod topology spread", "there are too few nodes",
        {f"{PLACING}.topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "nowhere", "whenUnsatisfiable": "DoNotSchedule"}
        ]},
    ),
    "scheduler": Case(
        "no scheduler has looked at it", "correct global.scheduling.schedulerName",
        {f"{PLACING}.schedulerName": "nowhere"},
    ),
    "storage class": Case(
        'storageclass.storage.k8s.io "nowhere" not found', "name a StorageClass that exists",
        NEW | {f"{DATA}.storageClass": "nowhere"},
    ),
    "no storage class": Case(
        "no persistent volumes available", "name a StorageClass", NEW | {f"{DATA}.storageClass": "-"}
    ),
    "unbound claim": Case(
        "unbound immediate PersistentVolumeClaims", "see its own line", NEW | {f"{DATA}.storageClass": "-"}
    ),
    "key of a secret": Case(
        "references non-existent secret key", "add that key", {"global.secrets.wandb.existingSecret": "keyless"}
    ),
    "image that is never pulled": Case(
        "ErrImageNeverPull", "the image cannot be had",
        {"global.image.tag": "never-built", "global.image.pullPolicy": "Never"},
    ),
    "registry that is not there": Case(
        "connection refused", "the nodes do not reach the registry",
        {"global.image.registry": "localhost:1", "global.image.tag": "never-built"},
    ),
    "image without the program": Case(
        "executable file not found", "the image lacks the program",
        {"global.image.registry": "localhost/trainyard-node", "pytorchjob.image.repository": "pause",
         "global.image.tag": "1"},
    ),
}  # fmt: skip
RULED = {
    "quota": Case("exceeded quota", "the namespace's ResourceQuota is used up"),
    "quota of limits": Case("failed quota", "the namespace's ResourceQuota counts these"),
    "limit range": Case(
        "maximum memory usage per Container", "the namespace's LimitRange",
        {f"{TRAINING}.resources.limits": {"memory": "1Gi"}},
    ),
}  # fmt: skip
RULES = {
    "quota": ("ResourceQuota", {"hard": {"requests.memory": "1Mi"}}),
    "quota of limits": ("ResourceQuota", {"hard": {"limits.cpu": "1"}}),
    "limit range": ("LimitRange", {"limits": [{"type": "Container", "max": {"memory": "1Mi"}}]}),
}


@pytest.fixture(scope="module")
def named(namespace, image) -> dict[str, Named]:
    """Every case, installed and looked at; those that a namespace's rules refuse in separate namespaces."""
    releases = {name: f"say-{number}" for number, name in enumerate(CASES | RULED)}
    homes = {name: f"{namespace}-{releases[name]}" for name in RULED}
    with ThreadPoolExecutor(len(releases)) as pool, contextlib.ExitStack() as stack:
        for name, home in homes.items():
            kubectl("create", "namespace", home)
            kubectl("label", "namespace", home, *(f"{key}={value}" for key, value in LABELS.items()))
            stack.callback(kubectl, "delete", "namespace", home, "--wait=false")
            kind, spec = RULES[name]
            rule = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "team"}, "spec": spec}
            misconfigured.apply(home, rule, misconfigured.claim("data"), misconfigured.claim("results"))
        kubectl("create", "secret", "generic", "keyless", "-n", namespace, "--from-literal=other=1")
        misconfigured.seed(namespace, f"{image['registry']}/trainyard-pytorch:{image['tag']}")
        stack.callback(kubectl, "delete", "pytorchjob", "--all", "-n", namespace, "--wait=false")

        def look(name: str):
            home = homes.get(name, namespace)
            return pool.submit(watch, (CASES | RULED)[name], releases[name], home, installer(home, image, {}), {})

        running = {name: look(name) for name in CASES | RULED}
        found = {name: one.result() for name, one in running.items()}
    (cluster.ROOT / "build" / "what-clusters-say.txt").write_text(table(found))
    print(f"\n{table(found)}")
    return found


@pytest.mark.parametrize("name", CASES | RULED)
def test_what_is_wrong_is_named_within_a_minute(named, name):
    one = named[name]
    assert one.seconds, f"trainyard why did not name it; it said last:\n{one.last}"
    assert one.seconds <= one.within
