"""Volumes that somebody has prepared: whether a probe claim could take one, and whether one has.

Kubernetes binds a claim to any free volume of its class that has its mode and is large enough, before a volume is
made for it; what becomes of the claim then becomes of that volume, and of its files.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from trainyard.cluster import kube, survey
from trainyard.cluster.checks import probe_objects
from trainyard.cluster.checks.diagnosis import ERROR, Diagnosis, amount, several
from trainyard.cluster.demand import at
from trainyard.cluster.errors import KubeError, RefusedError

CLASS = "volume.beta.kubernetes.io/storage-class"  # which counts before spec.storageClassName
TAKEN = "pv.kubernetes.io/bound-by-controller"  # what Kubernetes writes on a volume that it found for a claim
FORBIDDEN = "this user may not list persistentvolumes: ask for a role that may (trainyard-doctor of deploy/roles.yaml)"


class KeptClaim(NamedTuple):
    """A probe claim that must not be deleted, since somebody's volume, and its files, might go with it."""

    namespace: str
    claim: str
    volumes: tuple[dict, ...]  # which it holds or may get; none where they could not be read
    why: str

    def remedy(self) -> str:
        """Return the commands that give the volumes back with all that they hold."""
        first, last = [], []
        for one in self.volumes or ({"metadata": {"name": "VOLUME"}, "spec": {}},):
            name, policy = one["metadata"]["name"], one["spec"].get("persistentVolumeReclaimPolicy", "")
            first.append(patch(name, "Retain"))
            if is_taken(one) or not at(one, "spec.claimRef.name"):  # else it is kept for another claim
                last.append(f"""kubectl patch pv {name} --type=merge -p '{{"spec":{{"claimRef":null}}}}'""")
            last += [patch(name, policy)] if policy not in ("", "Retain") else []
        where = "" if self.volumes else f"kubectl get pvc {self.claim} -n {self.namespace} tells its VOLUME, if any; "
        return where + "; ".join([*first, f"kubectl delete pvc {self.claim} -n {self.namespace}", *last])

    def diagnosis(self) -> Diagnosis:
        """Return it as a finding."""
        return Diagnosis(ERROR, f"persistentvolumeclaim/{self.claim}", self.why, self.remedy())


def patch(name: str, policy: str) -> str:
    """Return the command that sets what becomes of a volume when its claim goes."""
    return f"""kubectl patch pv {name} -p '{{"spec":{{"persistentVolumeReclaimPolicy":"{policy}"}}}}'"""


def read_all() -> list[dict]:
    """Return all volumes of the cluster; raises KubeError where this user may not list them."""
    found: list[dict] = kube.read(survey.EVERYWHERE["persistentvolumes"].address(None))["items"]
    return found


def explain(error: KubeError) -> str:
    """Say why volumes cannot be listed."""
    forbidden = isinstance(error, RefusedError) and error.status == 403
    return FORBIDDEN if forbidden else f"persistentvolumes cannot be listed: {error}"


def is_taken(volume: dict) -> bool:
    """Whether a claim has a volume; one that is kept for a claim by name alone is free until that claim comes."""
    return bool(at(volume, "spec.claimRef.uid"))


def fits(volume: dict, storage_class: str, mode: str) -> bool:
    """Whether Kubernetes would bind a probe claim of this class and mode to a free volume; True where in doubt."""
    spec, notes = volume["spec"], volume["metadata"].get("annotations") or {}
    if notes.get(CLASS, spec.get("storageClassName") or "") != storage_class or mode not in spec.get("accessModes", []):
        return False
    try:
        large = amount(at(spec, "capacity.storage", "")) >= amount(probe_objects.SIZE)
    except ValueError:
        large = True
    return large and spec.get("volumeMode", "Filesystem") != "Block"


def find_free(volumes: Iterable[dict], storage_class: str, mode: str) -> tuple[dict, ...]:
    """Return the volumes that a probe claim of this class and mode could get."""
    return tuple(one for one in volumes if not is_taken(one) and fits(one, storage_class, mode))


def forbid(storage_class: str, mode: str) -> str:
    """Return why no probe claim may be made now, and what the user can do; empty where nobody's volume is free."""
    try:
        found = find_free(read_all(), storage_class, mode)
    except KubeError as error:
        return f"a claim might take a volume that somebody has prepared, so none was tried; {explain(error)}"
    if not found:
        return ""
    names = several(f"{one['metadata']['name']} ({at(one, 'spec.capacity.storage', '?')})" for one in found)
    return (
        f"Kubernetes would give a claim a volume that somebody has prepared, {names}, before one is made, so none was "
        "tried: name that volume in values if it is the run's (volumeName), or try again when it has its claim"
    )


def is_made_for(volume: dict, claim: dict) -> bool:
    """Whether a volume was made for this very claim: bound to its uid, not before it, and not found for it."""
    meta, uid = volume["metadata"], claim["metadata"]["uid"]
    if at(volume, "spec.claimRef.uid", "") != uid or born(volume) < born(claim):
        return False
    # Kubernetes' own provisioners of old write the note, too, and have this name for what they make
    return TAKEN not in (meta.get("annotations") or {}) or meta["name"] == f"pvc-{uid}"


def born(thing: dict) -> datetime:
    """Return when an object was made."""
    return datetime.fromisoformat(thing["metadata"]["creationTimestamp"].replace("Z", "+00:00"))


def list_held(claim: dict, volumes: Iterable[dict]) -> list[dict]:
    """Return the volumes that a claim holds: by its own word or theirs, which comes first."""
    uid, named = claim["metadata"]["uid"], claim["spec"].get("volumeName", "")
    return [one for one in volumes if one["metadata"]["name"] == named or at(one, "spec.claimRef.uid", "") == uid]


def list_endangered(claim: dict, volumes: list[dict]) -> tuple[dict, ...]:
    """Return the volumes of others that might go with a claim: which it holds, or may be given at this moment."""
    if held := list_held(claim, volumes):
        return tuple(one for one in held if not is_made_for(one, claim))
    if claim["spec"].get("volumeName"):
        return ()  # it is lost: its volume has gone before
    spec = claim["spec"]
    return find_free(volumes, spec.get("storageClassName") or "", (spec.get("accessModes") or [""])[0])


def keep(claim: dict) -> KeptClaim | None:
    """Return why a probe claim must not be deleted now; None where nobody's volume could go with it."""
    try:
        return judge(claim, read_all())
    except KubeError as error:
        text = f"doctor's probe claim may hold a volume that somebody has prepared, and was kept: {explain(error)}"
        return KeptClaim(claim["metadata"]["namespace"], claim["metadata"]["name"], (), text)


def judge(claim: dict, volumes: list[dict]) -> KeptClaim | None:
    """Return why a claim must not be deleted while these are the volumes; None where it may be."""
    found = list_endangered(claim, volumes)
    if not found:
        return None
    does = "has taken" if list_held(claim, found) else "may take"
    names = several(one["metadata"]["name"] for one in found)
    text = f"doctor's probe claim {does} a volume that was not made for it, {names}; both were left as they are"
    return KeptClaim(claim["metadata"]["namespace"], claim["metadata"]["name"], found, text)
