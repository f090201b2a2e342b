"""What a job of many pods costs Kubernetes and its operator, on simulated nodes.

    python benchmarks/cpu/jobs.py [OUT.json] [--pods 8 64 512] [--operators pytorchjob mpijob trainjob] [--qps 100]

API server, etcd, scheduler, controllers and operators are real, nodes are not (simulated.py): a pod runs as soon as it
is on its node. The jobs are what the chart renders, with 8 GPUs for each pod, a node for each. It needs root, and the
programs of `make cluster`. Growth is the power of the number of pods by which a figure grew since the size before.

all run      from the job's creation until each of its pods is Running
requests     to the API server by all programs, without the kubelets' one for each pod
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.cpu.clients import Figure, table  # noqa: E402
from benchmarks.cpu.simulated import KUBELETS, Cluster, SimulationError, Thing, find_programs  # noqa: E402

SIZES = (8, 64, 512)
PATHS = {
    "pytorchjob": ("PyTorchJob", "kubeflow.org/v1", "pytorchjobs"),
    "mpijob": ("MPIJob", "kubeflow.org/v2beta1", "mpijobs"),
    "trainjob": ("TrainJob", "trainer.kubeflow.org/v1alpha1", "trainjobs"),
}
# Who looks after it; Trainer's kinds refer to JobSet's, so JobSet is first
PROGRAMS = {"pytorchjob": ("training-operator",), "mpijob": ("mpi-operator",), "trainjob": ("jobset", "trainer")}
JOBSETS = "jobset.x-k8s.io/v1alpha2"
LONG = 600.0  # seconds until all pods run
QUIET = 3.0  # seconds in which nobody asks for anything: the job has come to rest
VALUES: Thing = {
    "global": {
        "image": {"registry": "registry.example.com/team", "tag": "0.1.0"},
        "storage": {"data": {"existingClaim": "data"}, "results": {"existingClaim": "results"}},
        "dataset": {"name": "imagenet"},
        "training": {"gpusPerNode": 8, "recipe": "resnet50-nvidia-90"},
    },
    "dataset": {"enabled": False},
}  # fmt: skip


def render(operator: str, pods: int, namespace: str) -> list[Thing]:
    """Return the objects of a run on so many nodes."""
    values = json.loads(json.dumps(VALUES))
    values["global"]["training"] |= {"operator": operator, "nodes": pods}
    command = [find_programs() / "helm3", "template", "run", ROOT / "charts/trainyard", "-n", namespace, "-f", "-"]
    done = subprocess.run(
        list(map(str, command)), input=json.dumps(values), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SimulationError(done.stderr)
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    return [part for one in found for part in (one["items"] if one["kind"] == "List" else [one])]


def claim(cluster: Cluster, namespace: str, name: str) -> None:
    """Make a claim that is bound."""
    both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size, volume = {"storage": "1Gi"}, f"{namespace}-{name}"
    of = {"namespace": namespace, "name": name}
    cluster.client.ask("POST", "/api/v1/persistentvolumes", {
        "metadata": {"name": volume},
        "spec": both | {"capacity": size, "hostPath": {"path": "/none"}, "claimRef": of},
    })  # fmt: skip
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    cluster.client.ask("POST", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", {
        "metadata": {"name": name, "annotations": bound},
        "spec": both | {"volumeName": volume, "resources": {"requests": size}},
    })  # fmt: skip


def rest(cluster: Cluster, seconds: float = 120.0) -> Counter[tuple[str, str, str]]:
    """Wait until the programs ask for nothing that changes anything, and return their requests so far."""
    end, changed, before = time.monotonic() + seconds, time.monotonic(), -1
    while True:
        found = cluster.audit()
        now = sum(
            count
            for (_, verb, what), count in found.items()
            if verb not in ("get", "list", "watch") and what != "leases"
        )
        if now != before:
            before, changed = now, time.monotonic()
        if time.monotonic() - changed > QUIET or time.monotonic() > end:
            return found
        time.sleep(0.5)


def size_of(thing: Thing) -> float:
    """Return the size of an object in kB, as etcd holds it at most."""
    return len(json.dumps(thing)) / 1000


def run(cluster: Cluster, operator: str, pods: int) -> list[Figure]:
    """Start a job of so many pods, and return what that took."""
    kind, version, plural = PATHS[operator]
    namespace = f"{operator}-{pods}"
    client, kubelets = cluster.client, cluster.kubelets
    client.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    for name in ("data", "results"):
        claim(cluster, namespace, name)
    objects = render(operator, pods, namespace)
    (job,) = [one for one in objects if one["kind"] == kind]
    others = {"apiVersion": "v1", "kind": "List", "items": [one for one in objects if one is not job]}
    file = Path(f"/dev/shm/{namespace}.json")
    file.write_text(json.dumps(others))
    cluster.kubectl("apply", "-n", namespace, "-f", file)
    file.unlink()
    before, wanted = rest(cluster), pods + (operator == "mpijob")
    path = f"/apis/{version}/namespaces/{namespace}/{plural}"
    client.ask("POST", path, job)
    took = cluster.wait(
        f"{wanted} pods of {namespace}", lambda: kubelets.running.get(namespace, {}).get("Running", 0) >= wanted,
        "kube-apiserver", LONG,
    )  # fmt: skip
    made = rest(cluster)
    made.subtract(before)
    found = figures(operator, pods, took, made) + sizes(
        cluster, operator, pods, f"{path}/{job['metadata']['name']}", namespace
    )
    remove(cluster, namespace, f"{path}/{job['metadata']['name']}")
    return found


def remove(cluster: Cluster, namespace: str, job: str) -> None:
    """Delete a job, and all that was made for it, since nobody collects garbage here."""
    client, here = cluster.client, f"namespaces/{namespace}"
    client.ask("DELETE", job)
    with contextlib.suppress(LookupError):
        client.ask("DELETE", f"/apis/{JOBSETS}/{here}/jobsets")
    for path in (f"/apis/batch/v1/{here}/jobs", f"/api/v1/{here}/pods", f"/api/v1/{here}/services"):
        client.ask("DELETE", path)
    gone = lambda: not client.ask("GET", f"/api/v1/{here}/pods")["items"]  # noqa: E731
    cluster.wait(f"the pods of {namespace} are gone", gone, "kube-apiserver", LONG)


def figures(operator: str, pods: int, took: float, made: Counter[tuple[str, str, str]]) -> list[Figure]:
    """Return the time until all pods ran, and the requests by who made them."""
    by: Counter[str] = Counter()
    for (who, _, _), count in made.items():
        if who not in (KUBELETS, "kubectl"):
            by[who] += count
    lines = [Figure(operator, "all run", pods, took, "s"), Figure(operator, "requests", pods, sum(by.values()), "")]
    lines += [Figure(operator, f"requests of {who}", pods, count, "") for who, count in by.most_common(4)]
    return lines


def sizes(cluster: Cluster, operator: str, pods: int, job: str, namespace: str) -> list[Figure]:
    """Return the sizes of the job's objects, and the memory of who looks after them."""
    ask = cluster.client.ask
    maps = ask("GET", f"/api/v1/namespaces/{namespace}/configmaps")["items"]
    jobsets = ask("GET", f"/apis/{JOBSETS}/namespaces/{namespace}/jobsets")["items"] if operator == "trainjob" else []
    memory = cluster.memory()
    return [
        Figure(operator, "the job", pods, size_of(ask("GET", job)), "kB"),
        *(Figure(operator, "its JobSet", pods, size_of(one), "kB") for one in jobsets),
        Figure(operator, "largest ConfigMap", pods, max(map(size_of, maps)), "kB"),
        *(Figure(operator, f"memory of {name}", pods, memory[name], "MB") for name in PROGRAMS[operator]),
        Figure(operator, "memory of the API server", pods, memory["kube-apiserver"], "MB"),
    ]


def measure(sizes: Sequence[int], operators: Sequence[str], qps: int) -> list[Figure]:
    """Return all figures."""
    found: list[Figure] = []
    for operator in operators:
        with Cluster(max(sizes), PROGRAMS[operator], qps) as cluster:
            for pods in sizes:
                now = run(cluster, operator, pods)
                print(f"{operator} of {pods} pods: {now}", file=sys.stderr, flush=True)
                found += now
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="write the figures as JSON, too")
    parser.add_argument("--pods", type=int, nargs="+", default=list(SIZES), metavar="N", help="numbers of pods")
    parser.add_argument("--operators", nargs="+", default=list(PATHS), choices=list(PATHS), metavar="NAME")
    parser.add_argument(
        "--qps", type=int, default=0, help="requests a second that an operator may make; 0: its default"
    )
    asked = parser.parse_args()
    # Clean up also when it is ended from outside
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        found = measure(asked.pods, asked.operators, asked.qps)
    except SimulationError as error:
        sys.exit(f"jobs: {error}")
    if asked.out:
        asked.out.write_text(json.dumps([one._asdict() for one in found], indent=1) + "\n")
    print(table(found, asked.pods))


if __name__ == "__main__":
    main()
