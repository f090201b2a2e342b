"""The add-ons of the one-node cluster: present, in the pinned versions, called by the API server, started once."""

import json
import os
import re
import secrets
import socket
import subprocess
from pathlib import Path

import pytest

from tests.e2e import cluster, owners

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.takes(15),
    pytest.mark.skipif(not cluster.OWN, reason="add-ons are installed in the one-node cluster alone"),
    pytest.mark.usefixtures("trainer_v2", "kueue", "argocd"),
]
NAMES = ("trainer", "kueue", "argocd")
MODULES = {
    "jobset": "sigs.k8s.io/jobset",
    "trainer": "github.com/kubeflow/trainer/v2",
    "kueue": "sigs.k8s.io/kueue",
    "argocd": "github.com/argoproj/argo-cd/v3",
}
NAMESPACES = ("jobset-system", "kubeflow-system", "kueue-system")
GRAPH = cluster.ROOT / "hack/programs/go.mod"
RUN = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard")) / "run"
POD = {"spec": {"restartPolicy": "Never", "containers": [{"name": "pytorch", "image": "none"}]}}
PYTORCH = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never", "template": POD}}}
QUEUE = {"kueue.x-k8s.io/queue-name": "nobody"}


def pinned(module: str) -> str:
    """The version of an add-on's module that the programs are built of."""
    found = re.search(rf"\b{MODULES[module]} (v[0-9.]+)\b", GRAPH.read_text())
    assert found
    return found[1]


def asked(api: str, kind: str, spec: dict, labels: dict[str, str] | None = None) -> tuple[dict, str]:
    """What the API server would make of an object, and its refusal."""
    meta = {"name": f"asked-{secrets.token_hex(3)}", "labels": labels or {}}
    thing = json.dumps({"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec})

    def answer() -> "subprocess.CompletedProcess[str] | None":
        """Return kubectl's answer, unless a busy webhook was too late with its own."""
        command = ("kubectl", "create", "-n", "default", "--dry-run=server", "-o", "json", "-f", "-")
        done: subprocess.CompletedProcess[str] = cluster.run(*command, stdin=thing, check=False)
        return None if "failed calling webhook" in done.stderr else done

    done = cluster.until(f"the webhooks of {kind} answer", answer)
    return (json.loads(done.stdout) if done.returncode == 0 else {}), done.stderr


def living() -> set[str]:
    """The add-ons' containers and processes, so that a restarted one is another."""
    pods = [pod for name in NAMESPACES for pod in cluster.get("pods", name)]
    found = {
        f"{pod['metadata']['uid']} {s['restartCount']}" for pod in pods for s in pod["status"]["containerStatuses"]
    }
    return found | {f"{path.name} {path.read_text().strip()}" for path in (RUN / "extras/pids").iterdir()}


def test_what_is_there_is_not_started_again():
    before = living()
    done = cluster.run("hack/cluster/extra", *NAMES)
    assert [line for line in done.stderr.splitlines() if "ready (it was up)" in line] == done.stderr.splitlines()
    assert living() == before


def test_they_are_of_the_pinned_versions():
    images = cluster.kubectl("get", "deployments", "-A", "-o", "jsonpath={..image}").split()
    for module in ("jobset", "trainer", "kueue"):
        assert any(f"/{module}:{pinned(module)}-" in image for image in images), images
    public = json.loads(
        cluster.kubectl("get", "configmap", "kubeflow-trainer-public", "-n", "kubeflow-system", "-o", "json")
    )
    assert public["data"] == {"kubeflow_trainer_version": pinned("trainer")}
    home = cluster.run("hack/cluster/extra", "--where", "argocd").stdout.strip()
    assert f"{pinned('argocd')}+" in cluster.run(f"{home}/bin/argocd", "version", "--client", "--short").stdout


def test_a_trainjob_is_refused_in_words():
    made, refusal = asked("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": "nowhere"}})
    assert not made
    # Kueue looks for the runtime too, and either may be the first to answer
    assert re.search(
        r"webhook \"v(alidator\.trainjob\.trainer\.kubeflow\.org|trainjob\.kb\.io)\" denied the request", refusal
    )
    assert "nowhere" in refusal


def test_the_webhooks_of_trainer_and_jobset_refuse_in_words():
    meta = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    node = {"name": "node", "template": {"metadata": meta, "spec": {"template": POD}}}
    runtime = {"template": {"spec": {"replicatedJobs": [node]}}}
    made, refusal = asked("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", runtime)
    assert not made
    assert "must contain the required container for the ancestor: trainer" in refusal
    policy = {"targetReplicatedJobs": ["absent"], "operator": "All"}
    made, refusal = asked("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [node], "successPolicy": policy})
    assert not made
    assert "invalid replicatedJob name 'absent'" in refusal


def test_none_of_them_can_lose_a_lease_and_end():
    leases = cluster.get("leases.coordination.k8s.io", None)
    held = {lease["spec"].get("holderIdentity") for lease in leases if lease["metadata"]["namespace"] in NAMESPACES}
    pods = {pod["metadata"]["name"] for name in NAMESPACES for pod in cluster.get("pods", name)}
    assert not {pod for pod in pods for holder in held if holder and holder.startswith(pod)}


def test_kueue_holds_what_names_a_queue_and_leaves_the_rest_alone():
    queued, _ = asked("kubeflow.org/v1", "PyTorchJob", PYTORCH, QUEUE)
    free, _ = asked("kubeflow.org/v1", "PyTorchJob", PYTORCH)
    assert queued["spec"]["runPolicy"]["suspend"] is True
    assert not free["spec"].get("runPolicy", {}).get("suspend")
    for labels, held in ((QUEUE, True), (None, False)):
        assert asked("batch/v1", "Job", {"template": POD}, labels)[0]["spec"].get("suspend", False) is held


def test_no_webhook_is_asked_about_every_pod():
    text = cluster.kubectl("get", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "-o", "json")
    # those of a test that runs meanwhile are no add-on's
    items = [item for item in json.loads(text)["items"] if owners.MARK not in item["metadata"].get("labels", {})]
    hooks = [hook for item in items for hook in item["webhooks"] if "objectSelector" in hook]
    every = [hook for hook in hooks if not hook["objectSelector"]]
    asked_about = {name for hook in every for rule in hook["rules"] for name in rule["resources"]}
    assert {"jobs", "pytorchjobs", "trainjobs"} <= asked_about
    assert not {"pods", "deployments", "statefulsets"} & asked_about


def test_no_api_is_served_by_a_pod_whose_absence_would_keep_namespaces_from_being_deleted():
    services = json.loads(cluster.kubectl("get", "apiservices", "-o", "json"))["items"]
    assert [item["metadata"]["name"] for item in services if item["spec"].get("service")] == []


def test_argo_cd_ends_with_the_node_and_is_reached_from_nowhere_else():
    groups = {path.name: Path(f"/proc/{path.read_text().strip()}/cgroup") for path in (RUN / "extras/pids").iterdir()}
    assert len(groups) == 4
    for name, group in groups.items():
        assert "/trainyard-node-" in group.read_text(), name
    node = cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.addresses[0].address}")
    for port in (6379, 8081):  # its store and what reads repositories
        cluster.run("hack/cluster/in-node", "bash", "-c", f": < /dev/tcp/127.0.0.1/{port}")
        with pytest.raises(OSError), socket.create_connection((node, port), timeout=2):
            pass


def test_in_a_cluster_of_the_users_they_are_only_looked_for(tmp_path):
    absent = tmp_path / "config"
    text = Path(cluster.KUBECONFIG).read_text()
    absent.write_text(re.sub(r"https://[0-9.]+:6443", "https://127.0.0.1:1", text))
    done = cluster.run("env", f"KUBECONFIG={absent}", "hack/cluster/extra", "kueue", check=False)
    assert done.returncode
    assert f"the cluster of KUBECONFIG={absent} does not answer" in done.stderr
    absent.write_text(text)
    done = cluster.run("env", f"KUBECONFIG={absent}", "hack/cluster/extra", "kueue", "trainer")
    assert "has kueue trainer" in done.stderr
    assert "in the cluster" not in done.stderr


def test_an_unknown_add_on_is_refused():
    done = cluster.run("hack/cluster/extra", "kueu", check=False)
    assert done.returncode == 1
    assert "no add-on 'kueu'; there are: trainer kueue argocd" in done.stderr
