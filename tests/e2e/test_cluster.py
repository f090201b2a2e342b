"""The one-node cluster's life, shown on a second one beside that of the other tests, with its own state."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import patience
from tests.e2e import cluster

pytestmark = [pytest.mark.e2e, pytest.mark.takes(60)]
ROOT = Path(__file__).resolve().parents[2]
STATE = Path("/var/lib/trainyard-second")
LINK = "trainyard2"
ENV = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "TRAINYARD_HOLD")} | {
    "TRAINYARD_STATE": str(STATE),
    "TRAINYARD_LINK": LINK,
    "TRAINYARD_HOST_IP": "10.91.0.1",
    "TRAINYARD_NODE_IP": "10.91.0.2",
    "TRAINYARD_KUBECONFIG": str(STATE / "kubeconfig"),
    "TRAINYARD_UNPACKED_IMAGES": "own",  # it trains nothing
    "TRAINYARD_PATIENCE": cluster.ENV["TRAINYARD_PATIENCE"],
}


def script(name: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one of the cluster's scripts on the second cluster; what it says is in `stderr`."""
    command = [str(ROOT / "hack/cluster" / name), *args]
    return patience.run(command, env=ENV | env)


def kubectl(*args: str) -> str:
    return cluster.kubectl("--kubeconfig", str(STATE / "kubeconfig"), *args)


def printed(*command: str) -> set[str]:
    done = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    return {line.rstrip() for line in done.splitlines() if not line.startswith("#")}


def processes() -> set[str]:
    """The second cluster's processes, by environment or control group, and any in their own network."""
    second = f". {ROOT}/hack/cluster/settings.sh; echo $CGROUP"
    cgroup = subprocess.run(["bash", "-c", second], env=ENV, text=True, capture_output=True, check=True).stdout.strip()
    mark = f"TRAINYARD_STATE={STATE}".encode()
    ours = {Path("/proc/self/ns/net").readlink()}
    first = Path("/var/lib/trainyard/run/node.pid")  # the cluster of the other tests, in whose network they may be
    with contextlib.suppress(OSError):
        ours.add(Path(f"/proc/{first.read_text().strip()}/ns/net").readlink())
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, groups = (process / "comm").read_text().strip(), (process / "cgroup").read_text()
            marked = mark in (process / "environ").read_bytes().split(b"\0")
            apart = (process / "ns/net").readlink() not in ours and "/trainyard-node-" not in groups
        except OSError:
            continue
        if marked or apart or f"/{cgroup}" in groups:
            found.add(f"{process.name} {name}")
    return found


def cgroups() -> set[str]:
    """Every cgroup of a node, and in v2 what the root hands to its children."""
    top = Path("/sys/fs/cgroup")
    handed = top / "cgroup.subtree_control"
    # os.walk passes over what ends meanwhile
    found = {f"{at}/{name}" for at, names, _ in os.walk(top) for name in names if name.startswith("trainyard-node-")}
    return found | ({f"the root's {handed.read_text().strip()}"} if handed.exists() else set())


def machine() -> dict[str, set[str]]:
    """What a cluster could leave on this machine."""
    mounts = {" ".join(line.split()[:3]) for line in Path("/proc/self/mounts").read_text().splitlines()}
    return {
        "processes": processes(),
        # other tests mount theirs
        "mounts": {line for line in mounts if "buildah" not in line and "/pytest-of-" not in line},
        "interfaces": {path.name for path in Path("/sys/class/net").iterdir()},
        # not their numbers, nor how long they are still valid
        "addresses": {re.sub(r"^\d+: | valid_lft.*", "", line) for line in printed("ip", "-o", "-4", "address")},
        "routes": {re.sub(r" expires \S+", "", line) for line in printed("ip", "route", "show", "table", "all")},
        "iptables": {re.sub(r"\[\d+:\d+\]", "", line) for line in printed("iptables-save")},
        "nftables": printed("nft", "list", "tables"),
        "cgroups": cgroups(),
        "network namespaces": printed("ip", "netns", "list"),
        # /run/sshd is made by the first test on this machine that starts a worker of mpirun
        "folders": {str(path) for parent in ("/var/lib", "/run", "/opt", "/") for path in Path(parent).glob("*")}
        - {"/run/sshd"},
    }


@dataclass
class Life:
    """Observations while the second cluster ran."""

    before: dict[str, set[str]]
    during: dict[str, set[str]] = field(default_factory=dict)
    after: dict[str, set[str]] = field(default_factory=dict)
    killed: str = ""
    up: str = ""
    again: str = ""
    same_node: bool = False
    classes: str = ""
    kinds: str = ""
    admission: str = ""
    links: dict[str, set[int]] = field(default_factory=dict)  # of what containerd writes to, and of what it reads


def kill_in_the_middle() -> str:
    """Start `up` and kill it, as nothing can be cleaned up after, once its node has begun to live."""
    process = subprocess.Popen(
        [str(ROOT / "hack/cluster/up")], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while not (STATE / "run/pids/kube-apiserver").exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return (STATE / "run/node.pid").read_text().strip()


def live(life: Life) -> None:
    """Take the second cluster through its life."""
    life.killed = kill_in_the_middle()
    life.up = script("up").stderr
    node = (STATE / "run/node.pid").read_text()
    life.again = script("up").stderr
    life.same_node = node == (STATE / "run/node.pid").read_text()
    life.during = machine()
    root = STATE / "run/containerd/root"
    life.links = {
        "lists": {path.stat().st_nlink for path in root.glob("*/*.db")},
        "layers": {path.stat().st_nlink for path in root.glob("*/blobs/sha256/*")},
    }
    life.classes = kubectl("get", "storageclass", "-o", "jsonpath={.items[*].metadata.annotations}")
    life.kinds = kubectl("get", "crd", "-o", "name")
    kubectl("create", "namespace", "closed")
    kubectl("label", "namespace", "closed", "pod-security.kubernetes.io/enforce=restricted")

    def refused() -> bool:
        """Whether Pod Security does: its cache may lag behind the label, and a service account comes first."""
        at = [str(ROOT / "build/bin/kubectl"), "--kubeconfig", str(STATE / "kubeconfig"), "-n", "closed"]
        bare = [*at, "run", "bare", "--image=localhost/x:1", "--dry-run=server"]
        life.admission = subprocess.run(bare, text=True, capture_output=True, check=False).stderr
        return "PodSecurity" in life.admission

    patience.wait(lambda: f"Pod Security does not refuse a pod: {life.admission}", refused, patience.still)


@pytest.fixture(scope="module")
def life() -> Iterator[Life]:
    STATE.mkdir(exist_ok=True)
    assert script("build").returncode == 0
    script("down")  # what a run of these tests left that was killed in the middle
    seen = Life(before=machine())
    try:
        live(seen)
    finally:
        down = script("down")
    assert down.returncode == 0, down.stderr
    seen.after = machine()
    yield seen
    shutil.rmtree(STATE)


def test_up_starts_again_after_a_killed_one(life: Life) -> None:
    assert life.killed.isdigit()
    assert "removed first" in life.up
    assert "ready after" in life.up, life.up


def test_up_again_starts_nothing(life: Life) -> None:
    assert "it was up" in life.again, life.again
    assert life.same_node


def test_its_images_are_linked_from_the_cache_but_not_what_containerd_writes(life: Life) -> None:
    assert life.links["lists"] == {1}
    assert min(life.links["layers"]) >= 2


def test_it_has_storage_operators_and_pod_security(life: Life) -> None:
    assert "is-default-class" in life.classes
    assert "pytorchjobs.kubeflow.org" in life.kinds
    assert "mpijobs.kubeflow.org" in life.kinds
    assert 'violates PodSecurity "restricted' in life.admission


@pytest.mark.parametrize(
    "what",
    [
        "processes",
        "mounts",
        "interfaces",
        "addresses",
        "routes",
        "iptables",
        "nftables",
        "cgroups",
        "network namespaces",
        "folders",
    ],
)
def test_down_leaves_the_machine_as_before(life: Life, what: str) -> None:
    if what in ("processes", "interfaces", "addresses", "cgroups"):
        assert life.during[what] > life.before[what]  # it would be seen if it were left
    left = life.after[what] - life.before[what]
    gone = life.before[what] - life.after[what]
    assert (left, gone) == (set(), set())


def test_a_second_one_is_told_which_process_holds_the_machine() -> None:
    owner = STATE / "owner"
    with subprocess.Popen([str(ROOT / "hack/cluster/hold"), "sleep", "600"], env=ENV) as holder:
        try:
            while not (owner.exists() and f"{holder.pid} sleep" in owner.read_text()) and holder.poll() is None:
                time.sleep(0.05)
            for name in ("up", "down", "hold"):
                done = script(name, *(["true"] if name == "hold" else []), TRAINYARD_WAIT="1")
                assert done.returncode == 1
                assert re.search(rf"held by sleep 600 \(pid {holder.pid}, in {ROOT}, since", done.stderr), done.stderr
            assert holder.poll() is None  # none of them waited for its end
        finally:
            holder.kill()
    # And the lock does not outlive a killed holder
    assert script("hold", "true", TRAINYARD_WAIT="5").returncode == 0


def test_a_node_that_cannot_start_says_why_and_leaves_only_its_logs() -> None:
    done = script("up", TRAINYARD_SERVICE_CIDR="10.96.0.0/99")
    assert done.returncode == 1
    assert "kube-apiserver has ended" in done.stderr
    assert "not a valid cidr" in done.stderr, done.stderr
    assert str(STATE / "failed") in done.stderr
    assert (STATE / "failed/kube-apiserver.log").exists()
    assert not (STATE / "run").exists()
    assert not Path("/sys/class/net", LINK).exists()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"TRAINYARD_MIN_DISK_GB": "99999"}, r"GB free and the node with its images wants 99999 .*make room"),
        ({"TRAINYARD_LINK": "lo"}, r"an interface lo is here already .*TRAINYARD_LINK"),
        ({"TRAINYARD_NODE_IP": "127.0.0.9"}, r"the address 127\.0\.0\.9 is taken .*TRAINYARD_NODE_IP"),
        ({"TRAINYARD_STATE": "/run/trainyard"}, r"a /run, /opt and /var/log of its own"),
        ({"KUBECONFIG": "/nowhere/config"}, r"KUBECONFIG=/nowhere/config cannot be read; unset it"),
    ],
)
def test_what_is_in_the_way_is_named_with_its_remedy(env: dict[str, str], message: str) -> None:
    done = script("up", **env)
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr
    assert not (STATE / "run").exists()


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    for program in Path("/usr/bin").iterdir():
        if program.name != "containerd":
            (tmp_path / program.name).symlink_to(program)
    done = script("up", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "apt-get install --no-install-recommends containerd" in done.stderr


def test_a_cluster_that_does_not_answer_is_not_replaced_by_ours(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, users: [{name: u, user: {}}],"
        " clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}],"
        " contexts: [{name: c, context: {cluster: c, user: u}}]}"
    )
    done = script("up", KUBECONFIG=str(config))
    assert done.returncode == 1
    assert re.search(r"does not answer .*unset KUBECONFIG", done.stderr), done.stderr
    assert "left alone" in script("down", KUBECONFIG=str(config)).stderr
