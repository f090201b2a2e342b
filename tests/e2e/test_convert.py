"""Manifests of others, converted, start on the cluster with a tiny program in place of theirs.

Kept of the values are the kind and form of the job, its environment, mounts, labels and policies. What this cluster
does not have is replaced: images, GPUs and network devices, sizes, places, queues, and what a mount's volume is.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, log

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(2), pytest.mark.takes(60)]
FOLDER = Path(__file__).parents[1] / "charts" / "cases" / "convert"
REPRESENTATIVE = ("pytorch-torchrun-cpu", "mpi-pi", "trainjob-simple")  # one of each operator; the others are soaked
CASES = [
    pytest.param(path, id=path.stem, marks=[] if path.stem in REPRESENTATIVE else [pytest.mark.soak])
    for path in sorted(FOLDER.glob("*.yaml"))
]
# Each rank signs; rank 0 waits for all and prints: the operator may remove the others' pods, with their logs, after it
SCRIPT = """\
rank=${RANK:-$OMPI_COMM_WORLD_RANK} ranks=${WORLD_SIZE:-$OMPI_COMM_WORLD_SIZE}
mkdir -p $TRAINYARD_RUN_DIR/signed
echo "rank $rank is here, $TRAINYARD_RUN_DIR" > $TRAINYARD_RUN_DIR/signed/part-$rank
mv $TRAINYARD_RUN_DIR/signed/part-$rank $TRAINYARD_RUN_DIR/signed/$rank
[ $rank = 0 ] || exit 0
for other in $(seq 0 $((ranks - 1))); do
  until cat $TRAINYARD_RUN_DIR/signed/$other 2> /dev/null; do sleep 0.1; done
done
"""
PROGRAM = ["sh", "-euc", SCRIPT]
RESOURCES = {"requests": {"cpu": "10m", "memory": "64Mi"}}
NOT_HERE = (
    "gpusPerNode", "gpuResource", "rdma", "unrestricted", "extraInitContainers", "serviceAccount", "resourceClaims",
    "scheduling", "envFrom",
)  # fmt: skip


@pytest.fixture(scope="module")
def claim(namespace) -> str:
    """A claim for the results of all of them."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "out"}, "spec": spec}
    kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(made))
    return "out"


def options(path: Path) -> list[str]:
    """Return the options that a file asks for at its head, but for its program, which this test says."""
    image = [line for line in path.read_text().splitlines() if line.startswith("# options: ") and "--image" in line]
    return ["--image", image[0].rpartition("--image ")[2].split()[0]] if image else []


def small(values: dict[str, Any], image: dict[str, str], claim: str, program: list[str]) -> dict[str, Any]:
    """Replace what this cluster does not have."""
    shared, training = values["global"], values["global"]["training"]
    operator = training["operator"]
    for key in NOT_HERE:
        training.pop(key, None)
    training |= {"command": program, "resources": RESOURCES, "shmSize": "64Mi", "gpusPerNode": 0, "processesPerNode": 1}
    training["nodes"] = min(2, training["nodes"])
    kept = [one for one in training.get("env", []) if not one["name"].startswith(("NCCL_IB", "FI_", "OMPI_"))]
    # A Secret of theirs becomes a text; what has a value keeps it, as LOGLEVEL, which torch reads
    training["env"] = [{"name": one["name"], "value": one.get("value", "x")} for one in kept]
    for one in training.get("extraVolumes", []):
        name = one["name"]
        one.clear()
        one |= {"name": name, "emptyDir": {}}
    for one in training.get("extraVolumeMounts", []):
        one.pop("subPath", None)
    mpi = operator == "mpijob" or "config" in training
    own = values.setdefault(operator, {})
    own["image"] = {"repository": "trainyard-horovod" if mpi else "trainyard-pytorch"}
    own.get("elastic", {}).update(minNodes=training["nodes"])
    own.pop("launcher", None)
    own.get("runPolicy", {}).pop("suspend", None)  # a queue of theirs would resume it
    shared["image"] = image
    shared["storage"] = {"results": {"existingClaim": claim}}
    shared.pop("scheduling", None)
    return values


@pytest.mark.usefixtures("trainer_v2")
@pytest.mark.parametrize("path", CASES)
def test_it_starts_and_succeeds_on_every_rank(namespace, image, claim, path, tmp_path):
    place = tmp_path / "values.yaml"
    done = cluster.run("trainyard", "convert", path, *options(path), "--command", "true", "-o", place, check=False)
    assert done.returncode in (0, 1), done.stderr
    values = small(yaml.safe_load(place.read_text()), image, claim, PROGRAM)
    place.write_text(yaml.safe_dump(values))
    release = path.stem
    cluster.helm("upgrade", "--install", release, "charts/trainyard", "-n", namespace, "-f", place)
    try:
        cluster.follow(release, namespace)
        training = values["global"]["training"]
        ranks = {f"rank {rank} is here, /results/runs/{release}" for rank in range(training["nodes"])}
        pods = get("pods", namespace, f"app.kubernetes.io/instance={release}")
        said = "\n".join(log(pod["metadata"]["name"], namespace, pod["spec"]["containers"][0]["name"]) for pod in pods)
        assert ranks <= set(said.splitlines()), said
    finally:
        cluster.helm("uninstall", release, "-n", namespace, "--wait", "--ignore-not-found")
