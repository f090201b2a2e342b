"""Ten misconfigurations, side by side on the real cluster: trainyard why names cause and remedy within a minute each.

Where a container ran, its own message names the cause too. The table of what was measured is printed, and written to
build/misconfigurations.txt.
"""

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e import cluster, misconfigured
from tests.e2e.cases import Case, Named, installer, listen, table, watch
from tests.e2e.cluster import kubectl

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.skipif(not cluster.OWN, reason="it takes operators away and fills a disk of the one-node cluster"),
]


def other_port(text: str) -> str:
    """Give the Worker another port for the check of peers than the Master's."""
    before, worker, after = re.split(r"(\n    Worker:)", text, maxsplit=1)
    assert 'value: "23400"' in after
    return before + worker + after.replace('value: "23400"', 'value: "23499"')


PORT, STOCK = "wrong port between pods", "stock init template in `restricted`"
TWO = {"global.training.nodes": 2}
CASES = {
    "missing secret": Case(
        'secret "nowhere" not found', "create that Secret", {"global.secrets.wandb.existingSecret": "nowhere"}
    ),
    "wrong claim": Case(
        'persistentvolumeclaim "nowhere" not found',
        "correct existingClaim",
        {"global.storage.data.existingClaim": "nowhere"},
    ),
    "RWX from a class without it": Case(
        "only supports ReadWriteOnce", "this StorageClass cannot share a volume between nodes", place="class"
    ),
    "shm too small": Case(
        "/dev/shm has", "lower global.training.shmSize", {"global.training.shmSize": "9000Gi"}, tells=True
    ),
    "incomplete dataset: no manifest": Case(
        "/data/nowhere/manifest.json", "no Job of this release prepares it", {"global.dataset.name": "nowhere"},
        tells=True,
    ),
    "incomplete dataset: a shard cut short": Case(
        "train/shard-00000.tar has", "the data on the claim is damaged", {"global.dataset.name": "torn"}, tells=True
    ),
    PORT: Case(
        "connection refused", "one global.training.peers.port", TWO, tells=True, change=other_port
    ),
    "no space on a claim": Case(
        "is full", "enlarge it: size under global.storage", {"global.storage.results.existingClaim": "full"},
        tells=True,
    ),
    "unknown image": Case(
        "never-built: not found", "push it (make push", {"global.image.tag": "never-built"}, place="registry"
    ),
    "operator absent": Case(
        "no operator has looked at it", "mpi-operator is not running",
        {"pytorchjob.enabled": False, "mpijob.enabled": True},
    ),
    STOCK: Case(
        "init-pytorch", "start the operator with --pytorch-init-container-template-file", TWO
    ),
}  # fmt: skip


def operators_back() -> None:
    """Undo what the cases do to the operators."""
    kubectl("-n", "mpi-operator", "scale", "deployment/mpi-operator", "--replicas=1")
    cluster.run("hack/cluster/init-template", "restricted")


@pytest.fixture(scope="module")
def named(namespace, image) -> dict[str, Named]:
    """Every case, installed and observed; its prerequisites are removed afterwards."""
    releases = {name: f"case-{number}" for number, name in enumerate(CASES)}
    heard: dict[str, float] = {}
    over = threading.Event()
    with ThreadPoolExecutor(len(CASES) + 1) as pool, contextlib.ExitStack() as stack:
        one_node, registry = (
            stack.enter_context(one()) for one in (misconfigured.one_node_class, misconfigured.registry)
        )
        places = {
            "class": {"global.storage.data.existingClaim": "", "global.storage.data.storageClass": one_node},
            "registry": {"global.image.registry": registry},
        }
        stack.enter_context(misconfigured.full_volume(namespace))
        misconfigured.seed(namespace, f"{image['registry']}/trainyard-pytorch:{image['tag']}")
        stack.callback(kubectl, "delete", "pytorchjob,mpijob", "--all", "-n", namespace, "--wait=false")
        stack.callback(over.set)
        stack.callback(operators_back)
        kubectl("-n", "mpi-operator", "scale", "deployment/mpi-operator", "--replicas=0")
        install = installer(namespace, image, places)
        pool.submit(listen, namespace, {releases[name]: CASES[name] for name in CASES}, heard, over)
        order = sorted(CASES, key=lambda name: not CASES[name].tells)

        def start(name: str):
            return pool.submit(watch, CASES[name], releases[name], namespace, install, heard)

        running = {name: start(name) for name in order if name != STOCK}
        # Only then: a recreated Worker would get the stock template too
        running[PORT].result()
        cluster.run("hack/cluster/init-template", "stock")
        running[STOCK] = start(STOCK)
        found = {name: running[name].result() for name in CASES}
    text = table(found)
    (cluster.ROOT / "build" / "misconfigurations.txt").write_text(text)
    print(f"\n{text}")
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_named_within_a_minute(named, name):
    one = named[name]
    assert one.seconds, f"trainyard why did not name it; it said last:\n{one.last}"
    assert one.seconds <= one.within
    if CASES[name].tells:
        assert one.pod_seconds, "no pod named it"
        assert one.pod_seconds <= one.within
