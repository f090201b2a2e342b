"""What helm upgrade and rollback do to a release in a `restricted` namespace, on both Helms. Nothing trains here."""

import json
import re

import pytest
import yaml

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, until

pytestmark = [pytest.mark.e2e, pytest.mark.takes(45)]
HELMS = ("helm3", "helm4")
EVERYTHING = [
    "-f", "examples/demo.yaml",
    "--set", "global.image.registry=localhost,global.image.tag=no-such-image,global.image.pullPolicy=Never",
    "--set", "secrets.enabled=true,secrets.wandb.apiKey=none,networkPolicy.enabled=true",
    "--set", "global.training.config.wandb.mode=off",
]  # fmt: skip
WAITING = ["--set", "pytorchjob.runPolicy.suspend=true,mpijob.runPolicy.suspend=true"]
RUNNING = ["--set", "pytorchjob.runPolicy.suspend=false,mpijob.runPolicy.suspend=false"]
WARNING = re.compile(r"^Warning:|^W\d{4} |would violate|forbidden", re.M)


def upgrade(program: str, namespace: str, *settings: str) -> str:
    """Install or upgrade the release of one Helm, which must not be warned; return what it then consists of."""
    command = ("upgrade", "--install", program, "charts/trainyard", "-n", namespace, *EVERYTHING)
    done = cluster.helm(*command, *settings, program=program)
    assert not WARNING.search(done.stdout + done.stderr), done.stdout + done.stderr
    return manifest(program, namespace)


def manifest(program: str, namespace: str) -> str:
    """Return the manifest of the release that is now there."""
    return cluster.helm("get", "manifest", program, "-n", namespace, program=program).stdout


def objects(namespace: str, text: str) -> dict[str, dict]:
    """Return a manifest's objects as they are in the cluster, by kind and name."""
    found = json.loads(kubectl("get", "-n", namespace, "-f", "-", "-o", "json", stdin=text))["items"]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def version(one: dict) -> str:
    """Return what changes with an object: its resourceVersion, unless others than Helm may raise that meanwhile.

    An operator writes a job's status when it likes, and the API server raises the version of a claim that is not bound
    on every server-side apply, with nothing else changed: of these it is the content that counts.
    """
    meta = one["metadata"]
    if one["kind"] in ("PyTorchJob", "MPIJob") or one.get("status", {}).get("phase") == "Pending":
        kept = {key: meta.get(key) for key in ("generation", "labels", "annotations")}
        return json.dumps([kept, one["spec"]], sort_keys=True)
    return str(meta["resourceVersion"])


def settled(namespace: str, text: str) -> dict[str, tuple[str, str]]:
    """Return uid and version of each object once nobody writes into any of them."""
    seen: list[dict[str, tuple[str, str]]] = []

    def look() -> bool:
        now = objects(namespace, text)
        seen.append({name: (one["metadata"]["uid"], version(one)) for name, one in now.items()})
        # the dataset's pod mounts one claim; what no pod mounts is bound to nothing yet
        claims = [one for name, one in now.items() if re.fullmatch(r"PersistentVolumeClaim/.*-data", name)]
        bound = all(one["status"]["phase"] == "Bound" for one in claims)
        return bound and len(seen) > 4 and all(one == seen[-1] for one in seen[-4:])

    until("nothing changes any more", look)
    return seen[-1]


def jobs(namespace: str, program: str) -> set[str]:
    """Return kind and name of all the training jobs of a release, whatever its manifest says."""
    kinds = "pytorchjobs.kubeflow.org,mpijobs.kubeflow.org"
    found = get(kinds, namespace, f"app.kubernetes.io/instance={program}")
    return {f"{one['kind']}/{one['metadata']['name']}" for one in found if "deletionTimestamp" not in one["metadata"]}


@pytest.mark.parametrize("program", HELMS)
def test_the_same_values_change_nothing(namespace, program):
    before = settled(namespace, upgrade(program, namespace, *WAITING))
    kinds = {name.split("/")[0] for name in before}
    assert kinds >= {"PersistentVolumeClaim", "Secret", "ConfigMap", "NetworkPolicy", "Job", "PyTorchJob", "MPIJob"}
    assert settled(namespace, upgrade(program, namespace, *WAITING)) == before


@pytest.mark.parametrize("program", HELMS)
def test_a_changed_recipe_is_a_new_job_and_a_rollback_the_old_one(namespace, program):
    upgrade(program, namespace, *WAITING)
    history = json.loads(cluster.helm("history", program, "-n", namespace, "-o", "json", program=program).stdout)
    first, claims = jobs(namespace, program), uids("pvc", namespace)
    assert len(first) == 2
    assert claims

    upgrade(program, namespace, *WAITING, "--set", "global.training.recipe=resnet50-a3")
    until("the old jobs are gone", lambda: not jobs(namespace, program) & first)
    assert len(jobs(namespace, program)) == 2

    cluster.helm("rollback", program, str(history[-1]["revision"]), "-n", namespace, program=program)
    until("the first jobs alone are back", lambda: jobs(namespace, program) == first)
    assert set(objects(namespace, manifest(program, namespace))) >= first
    assert uids("pvc", namespace) == claims, "a claim was recreated"


def uids(kind: str, namespace: str) -> dict[str, str]:
    """Return the uids of the objects of a kind, by name."""
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in get(kind, namespace)}


def templates(text: str) -> dict[str, dict]:
    """Return the pods of all jobs in a manifest, those included that an operator has not yet made."""
    found = {}
    for job in filter(None, yaml.safe_load_all(text)):
        spec = job.get("spec", {})
        replicas = spec.get("pytorchReplicaSpecs") or spec.get("mpiReplicaSpecs") or {"Pod": spec}
        for name, replica in replicas.items():
            if "template" in replica:
                found[f"{job['kind']}-{name}".lower()] = replica["template"]
    return found


def test_no_pod_of_a_full_release_is_warned_of(namespace):
    text = upgrade("helm3", namespace, *RUNNING)
    for name, template in templates(text).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        done = cluster.run("kubectl", "create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
        assert not WARNING.search(done.stdout + done.stderr), done.stderr
    assert set(templates(text)) >= {"pytorchjob-master", "pytorchjob-worker", "mpijob-launcher", "mpijob-worker"}

    def made() -> bool:
        own = "app.kubernetes.io/instance=helm3,app.kubernetes.io/name in (pytorchjob,mpijob,dataset)"
        return len(get("pods", namespace, own)) >= 5  # a Master, three Workers, and the dataset's

    until("the operators have made their pods", made)
    events = [one.get("message", "") for one in get("events", namespace)]
    assert [said for said in events if "PodSecurity" in said] == []


def test_the_namespace_would_warn_of_a_pod_with_more_rights(namespace):
    command = ("create", "deployment", "loose", "--image=none", "-n", namespace, "--dry-run=server")
    assert WARNING.search(cluster.run("kubectl", *command).stderr)
