"""Three pods share the preparation without communication; one is killed midway; trainers wait, and say so."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, log, until
from trainyard.prepare.build import build
from trainyard.prepare.settings import parse

pytestmark = [pytest.mark.e2e, pytest.mark.takes(60)]
RELEASE = "shared"
WHOLE = True  # the archive: its shards are enough for three pods
PODS = 3
PREPARATION = {"shard_mb": 1, "workers": 1}
SETTINGS = [
    "--set", f"dataset.parallelism={PODS}", "--set", "dataset.resources.requests.cpu=50m",
    *(text for key, value in PREPARATION.items() for text in ("--set", f"dataset.settings.{key}={value}")),
    "--set", "mpijob.enabled=false", "--set", "global.training.nodes=1", "--set", "global.training.processesPerNode=1",
    "--set", "global.training.config.max_steps=2", "--set", "global.training.config.wandb.mode=off",
]  # fmt: skip
# Answers that a pod gets on one connection before the archive's server lets everybody wait: it asks for the directory
# in seven requests, and for each of its five shards of train in three to six, so that it has one by then, and not all.
ANSWERS = 14
GO = "/srv/go"
SERVE = f"""
import sys, threading, time
from pathlib import Path
sys.path.append("/server")
import serve_archive
held = threading.Event()
class Held(serve_archive.RangeHandler):
    asked = 0
    def answer(self, *, body):
        self.asked += 1
        if self.asked > {ANSWERS}:
            held.set()
        while held.is_set() and not Path("{GO}").exists():
            time.sleep(0.1)
        super().answer(body=body)
server = serve_archive.make_server(Path("/srv"), "0.0.0.0", 8081, Held)
print("serving", flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def held_archive(namespace, archive) -> Iterator[str]:
    """The archive's URL on a server that can be held, so that the preparation can be killed in its middle."""
    address = kubectl("get", "pod", "archive", "-n", namespace, "-o", "jsonpath={.status.podIP}")
    line = ["kubectl", "exec", "archive", "-n", namespace, "--", "python", "-c", SERVE]
    with subprocess.Popen(line, env=cluster.ENV, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline().strip() == "serving"
        yield f"http://{address}:8081/fashion.zip"
        server.kill()


def preparing(namespace: str, phase: str = "") -> dict[str, list[str]]:
    """Return the names of the preparation's pods, by index; only those in a phase, if one is given."""
    found: dict[str, list[str]] = {}
    for pod in get("pods", namespace, "batch.kubernetes.io/job-completion-index"):
        if not phase or pod["status"]["phase"] == phase:
            index = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
            found.setdefault(index, []).append(pod["metadata"]["name"])
    return found


def midway(namespace: str) -> tuple[str, str] | None:
    """Return the index and the pod of a part that has finished some of its shards but not all; None if no part has."""
    for index, pods in preparing(namespace, "Running").items():
        said = re.findall(r"(\d+) of (\d+) shards", log(pods[0], namespace))
        if said and 0 < int(said[-1][0]) < int(said[-1][1]):
            return index, pods[0]
    return None


def trainer(namespace: str) -> str:
    """Return the name of the pod that is to train, once there is one."""
    pods = get("pods", namespace, "training.kubeflow.org/job-role=master")
    return pods[0]["metadata"]["name"] if pods else ""


def test_a_pod_of_three_killed_midway_and_training_starts_by_itself(namespace, held_archive, install):
    install(RELEASE, namespace, *SETTINGS, "--set", f"dataset.source.url={held_archive}")
    master = until("a trainer's pod", lambda: trainer(namespace))

    def waiting() -> str:
        return log(master, namespace, "preflight")

    until(
        lambda: f"the trainer says how many shards are finished: {waiting()}",
        lambda: re.search(r"waiting for /data/fashion/manifest\.json \([1-9]\d* shards are finished\)", waiting()),
    )
    index, victim = until("a part that has finished a shard and is still at work", lambda: midway(namespace))
    kubectl("delete", "pod", victim, "-n", namespace, "--force", "--grace-period=0")
    until("another pod for that part", lambda: set(preparing(namespace).get(index, [])) - {victim})
    kubectl("exec", "archive", "-n", namespace, "--", "touch", GO)

    until(
        lambda: f"training by itself; the preflight says: {waiting()}",
        lambda: "step" in log(master, namespace, "pytorch"),
    )
    said = "".join(log(pod, namespace) for pods in preparing(namespace).values() for pod in pods)
    assert "are finished from before and kept" in said
    assert "prepared /data/fashion: 6,000 train and 2,000 val samples" in said
    until("every pod of the preparation done", lambda: len(preparing(namespace, "Succeeded")) == PODS)
    until("training done", lambda: get("pods", namespace, "training.kubeflow.org/job-role=master")[0]["status"]
          ["phase"] == "Succeeded")  # fmt: skip


def test_the_shards_are_those_of_one_process(namespace, tmp_path):
    claims = {claim["metadata"]["name"]: claim["spec"]["volumeName"] for claim in get("pvc", namespace)}
    volume = json.loads(kubectl("get", "pv", claims[f"{RELEASE}-data"], "-o", "json"))["spec"]
    root = Path((volume.get("hostPath") or volume.get("local") or {"path": "/nowhere"})["path"])
    if not root.exists():
        pytest.skip("the claim's folder is not on this machine")
    source = {"kind": "path", "path": str(cluster.sample())}
    alone = build(parse({"source": source, "out": str(tmp_path / "fashion"), **PREPARATION}))
    shared = json.loads((root / "fashion" / "manifest.json").read_text())
    for split, entry in alone.splits.items():
        assert [shard["sha256"] for shard in shared["splits"][split]["shards"]] == [s.sha256 for s in entry.shards]
