"""Values of a converted manifest for the tests' cluster, with a tiny program in place of the manifest's own.

Kept of the values are the kind and form of the job, its environment, mounts, labels and policies. What this cluster
does not have is replaced: images, GPUs and network devices, sizes, places, queues, and what a mount's volume is.
"""

from typing import Any

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
    "scheduling", "envFrom", "hostUsers",
)  # fmt: skip


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
    training.get("securityContext", {}).pop("appArmorProfile", None)
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
