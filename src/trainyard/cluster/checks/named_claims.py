"""Claims that values say exist: whether they are bound, written, shared, reached from the nodes, and have room."""

from collections.abc import Iterator, Mapping

from trainyard.cluster.checks import placement, volumes
from trainyard.cluster.checks.diagnosis import ERROR, WARNING, Diagnosis, amount, several, show
from trainyard.cluster.checks.volumes import RWO, RWX, chosen
from trainyard.cluster.demand import Demand, at
from trainyard.cluster.survey import ClusterSurvey

FULL = 0.95  # share of a volume from which it is as good as full
WHICH = "global.storage.*.existingClaim"


def list_claims(demand: Demand) -> list[str]:
    """Return the claims that pods mount and that the release does not make."""
    made = {one["metadata"]["name"] for one in demand.claims}
    mounted = [volume for group in demand.groups for volume in group.spec.get("volumes") or []]
    return sorted({at(one, "persistentVolumeClaim.claimName", "") for one in mounted} - made - {""})


def is_written(name: str, demand: Demand) -> bool:
    """Whether a pod of the run mounts a claim to write to it."""
    for group in demand.groups:
        mine = {
            volume["name"]
            for volume in group.spec.get("volumes") or []
            if at(volume, "persistentVolumeClaim.claimName") == name
            and not at(volume, "persistentVolumeClaim.readOnly", False)
        }
        mounts = [mount for one in group.spec.get("containers") or [] for mount in one.get("volumeMounts") or []]
        if any(mount["name"] in mine and not mount.get("readOnly") for mount in mounts):
            return True
    return False


def check_binding(label: str, claim: dict, classes: list[dict]) -> Diagnosis | None:
    """Say that a claim has no volume, or soon none."""
    phase = at(claim, "status.phase", "?")
    if claim["metadata"].get("deletionTimestamp"):
        return Diagnosis(ERROR, label, "it is being deleted", f"name another under {WHICH}")
    if phase == "Lost":
        lost = f"restore {claim['spec'].get('volumeName')}, or name another"
        return Diagnosis(ERROR, label, "its volume is gone", lost)
    if phase == "Pending" and (chosen(claim, classes) or {}).get("volumeBindingMode") != "WaitForFirstConsumer":
        remedy = f"see why: kubectl describe {label}; or name another under {WHICH}"
        return Diagnosis(ERROR, label, "it is not bound", remedy)
    return None


def check_modes(label: str, claim: dict, demand: Demand, nodes: list[dict]) -> Iterator[Diagnosis]:
    """Name modes in which a claim cannot serve the run."""
    modes, name = set(claim["spec"].get("accessModes", [])), claim["metadata"]["name"]
    if claim["spec"].get("volumeMode") == "Block":
        seen = "it is a block device (volumeMode: Block), and pods mount a file system"
        yield Diagnosis(ERROR, label, seen, f"name a claim with volumeMode: Filesystem under {WHICH}")
    elif (
        demand.spreads
        and not {RWX, "ReadOnlyMany"} & modes
        # pods of a single node may all mount it
        and not (RWO in modes and len(volumes.list_able(demand.groups, nodes)) == 1)
    ):
        seen = f"its modes are {several(sorted(modes))}, and pods of the run are on several nodes"
        yield Diagnosis(ERROR, label, seen, f"name a claim with {RWX}, or set global.training.nodes: 1")
    elif modes == {"ReadOnlyMany"} and is_written(name, demand):
        seen = "its only mode is ReadOnlyMany, and the run writes to it"
        remedy = f"name a claim with {RWX} under {WHICH}; for prepared data set dataset.enabled: false"
        yield Diagnosis(ERROR, label, seen, remedy)


def find_nodes(volume: dict, nodes: list[dict]) -> list[dict]:
    """Return the nodes that a volume can be mounted on."""
    required = at(volume, "spec.nodeAffinity.required", {})
    if not required:
        return nodes
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    return [one for one in nodes if placement.chosen(spec, one)]


def check_reach(label: str, volume: dict, demand: Demand, nodes: list[dict]) -> Iterator[Diagnosis]:
    """Name a volume that is not where the run's pods may be placed, or that is another on each node."""
    for group in demand.training:
        able = placement.fitting_nodes(group.spec, nodes)
        if able and not find_nodes(volume, able):
            seen = f"its volume {volume['metadata']['name']} can be mounted on none of the nodes for the {group.name}"
            remedy = "correct global.scheduling.nodeSelector or affinity, or name a claim that these nodes reach"
            yield Diagnosis(ERROR, label, seen, remedy)
            return
        where = volumes.find_place(volume)
        if where and volumes.is_scattered(demand, nodes):
            seen = f"its volume is {where}: pods on several nodes would not see each other's files"
            remedy = f"name a claim on shared storage (docs/storage.md) under {WHICH}{volumes.MOUNTED[where]}"
            yield Diagnosis(volumes.level(where), label, seen, remedy)
            return


def check_usage(label: str, usage: Mapping) -> Iterator[Diagnosis]:
    """Name a claim whose volume is full, as the kubelet of a node that mounts it has measured it."""
    size, free = usage.get("capacityBytes") or 0, usage.get("availableBytes", 0)
    inodes, left = usage.get("inodes") or 0, usage.get("inodesFree", 0)
    if size and free < size * (1 - FULL):
        seen = f"{show(amount(free), 'storage')} of its {show(amount(size), 'storage')} are free"
        yield Diagnosis(WARNING, label, seen, "remove what is not needed from it, or enlarge it, before the run")
    if inodes and left < inodes * (1 - FULL):
        seen = f"{left} of its {inodes} inodes are free: no file can be added soon"
        yield Diagnosis(WARNING, label, seen, "remove small files from it, or make its file system with more inodes")


def examine(survey: ClusterSurvey, demand: Demand) -> Iterator[Diagnosis]:
    """Name claims that values say exist, and that do not, or that cannot serve the run."""
    if "persistentvolumeclaims" in survey.unseen:
        return
    known = {one["metadata"]["name"]: one for one in survey.of("persistentvolumeclaims")}
    made = {one["metadata"]["name"]: one for one in survey.of("persistentvolumes")}
    usage = {one["claim"]: one for one in survey.of("volume-usage")}
    for name in list_claims(demand):
        label, claim = f"persistentvolumeclaim/{name}", known.get(name)
        if claim is None:
            seen = "values name it as an existing claim, and it does not exist"
            yield Diagnosis(ERROR, label, seen, "create it, or correct existingClaim under global.storage")
            continue
        if bad := check_binding(label, claim, survey.of("storageclasses")):
            yield bad
            continue
        yield from check_modes(label, claim, demand, survey.of("nodes"))
        if volume := made.get(claim["spec"].get("volumeName") or ""):
            yield from check_reach(label, volume, demand, survey.of("nodes"))
        if is_written(name, demand):
            yield from check_usage(label, usage.get(name, {}))
